"""Driver, for the cli: the objects of an archive in its store, and which of them no row names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.archive_format import ObjectName
from shallow_mirror.checkpoints.ledger import ArchiveTable, of_partition
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.errors import ArchiveFormatError, ObjectMissingError
from shallow_mirror.object_store import ObjectInfo, ObjectStore
from shallow_mirror.operations.archive.object_check import read_footer
from shallow_mirror.types import SourcePartition

_UNFINISHED_TAIL = len(".01234567.unfinished")


class NamedObjects:
    """The objects that rows name, as 64-bit hashes: some bytes for each of millions.

    Two names of one hash make an orphan look as if it were named, and never the other way round.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = np.unique(np.fromiter((_hash(name) for name in names), np.uint64))

    @classmethod
    def of_table(cls, table: ArchiveTable) -> NamedObjects:
        """Take all rows but those that say that their object was deleted."""
        return cls(name for names in _named(table) for name in pc.unique(names).to_pylist() if name is not None)

    def __contains__(self, name: str) -> bool:
        at = int(np.searchsorted(self._hashes, np.uint64(_hash(name))))
        return at < len(self._hashes) and int(self._hashes[at]) == _hash(name)


def named_of(table: ArchiveTable, names: Collection[str]) -> set[str]:
    """Return those of these objects that a row of the table names."""
    wanted = pa.array(sorted(names), pa.string())
    return {
        name
        for column in _named(table)
        for name in column.filter(pc.is_in(column, value_set=wanted)).to_pylist()
        if name is not None
    }


def _named(table: ArchiveTable) -> Iterator[pa.ChunkedArray]:
    for piece in table.pieces(columns=["object_name", "state"]):
        yield piece.filter(pc.not_equal(piece["state"], SegmentState.DELETE_SEGMENT_FINISHED.value))["object_name"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """`is_unfinished`: a file that was being written, in a folder."""

    info: ObjectInfo
    is_unfinished: bool


def find_orphans(table: ArchiveTable, store: ObjectStore) -> Iterator[Orphan]:
    """Yield the leftovers of a run: objects and unfinished files of decisions that are over, which no row of `table` names.

    A decision is over when the table records its version, or a higher one: it cannot be committed any more. So this is safe
    beside a running archive: its new objects are for a decision above the recorded one. The objects have to be those of this
    table: versions of another table say nothing.
    """
    recorded = table.recorded()
    if recorded is None:
        return
    named = NamedObjects.of_table(table)
    for info in store.list(table.archive_id):
        name = ObjectName.parse(info.name)
        if name is not None and name.version <= recorded.version and info.name not in named:
            yield Orphan(info, is_unfinished=False)
    for info in store.list_unfinished(table.archive_id):
        # `folder/.name.01234567.unfinished` would have become `folder/name`.
        folder, _, file = info.name.rpartition("/")
        name = ObjectName.parse(f"{folder}/{file[1:-_UNFINISHED_TAIL]}")
        if name is not None and name.version <= recorded.version:
            yield Orphan(info, is_unfinished=True)


class OnlyCopies:
    """Whether an object has offsets that no row of data has. Reads the rows of its partitions once."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table = table
        self._spans: dict[tuple[SourcePartition, int], list[tuple[int, int]]] = {}

    def problem_of(self, store: ObjectStore, name: str) -> str | None:
        """Return why an object may be the only copy of offsets; None if rows have all that is in it.

        Rows of expired data count. Those of gaps and of offsets that had expired at the source do not: the object would have
        them. Raises as the store. An object that is gone has no problem.
        """
        try:
            rows = read_footer(store, name).rows
        except ArchiveFormatError as error:
            return f"{name}: {error.detail}"
        except ObjectMissingError:
            return None
        for row in rows:
            segment = row.segment
            if row.stored is None:
                continue
            at = segment.source_start
            for start, end in self._spans_of(segment.source, segment.lineage):
                if start <= at < end:
                    at = end
            if at < segment.source_end:
                return f"{name} has offset {at} of {segment.source.topic_partition}, and no row has"
        return None

    def _spans_of(self, source: SourcePartition, lineage: int) -> list[tuple[int, int]]:
        """Return the adjacent offsets of data, rising."""
        key = source, lineage
        if key not in self._spans:
            condition = (*of_partition(source), Comparison("kind", "=", "data"), Comparison("lineage", "=", lineage))
            spans: list[tuple[int, int]] = []
            pieces = self._table.pieces(condition, ["source_start", "source_end"])
            rows = [row for piece in pieces for row in zip(*(column.to_pylist() for column in piece.columns), strict=True)]
            for start, end in sorted(rows):
                if spans and spans[-1][1] >= start:
                    spans[-1] = spans[-1][0], max(end, spans[-1][1])
                else:
                    spans.append((start, end))
            self._spans[key] = spans
        return self._spans[key]


def fingerprint_of(names: Iterable[str]) -> str:
    """Return the number of objects and a sum over their names, in any order, which another set of objects has not."""
    hashes = [_hash(name) for name in names]
    return f"{len(hashes)}-{sum(hashes) % (1 << 64):016x}"


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
