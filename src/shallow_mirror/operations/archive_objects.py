"""Driver, for the cli: the objects of an archive in its store, and which of them no row names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow.compute as pc

from shallow_mirror.archive_format.object_names import ObjectName
from shallow_mirror.checkpoints.archive_schema import SegmentState
from shallow_mirror.checkpoints.archive_table import ArchiveTable
from shallow_mirror.object_store.base import ObjectInfo
from shallow_mirror.object_store.object_store import ObjectStore

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
        return cls(
            name
            for piece in table.pieces(columns=["object_name", "state"])
            for name in pc.unique(
                piece.filter(pc.not_equal(piece["state"], SegmentState.DELETE_SEGMENT_FINISHED.value))["object_name"]
            ).to_pylist()
            if name is not None
        )

    def __contains__(self, name: str) -> bool:
        at = int(np.searchsorted(self._hashes, np.uint64(_hash(name))))
        return at < len(self._hashes) and int(self._hashes[at]) == _hash(name)


@dataclass(frozen=True, slots=True)
class Orphan:
    """`is_unfinished`: a file that was being written, in a folder."""

    info: ObjectInfo
    is_unfinished: bool


def find_orphans(table: ArchiveTable, store: ObjectStore) -> Iterator[Orphan]:
    """Yield what a run left: objects and unfinished files of decisions that are over, which no row of `table` names.

    A decision is over when the table records its version, or a higher one: it cannot be committed any more. So this is safe
    beside a running archive: what it writes now is for a decision above the recorded one.
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
        name = _name_of_unfinished(info.name)
        if name is not None and name.version <= recorded.version:
            yield Orphan(info, is_unfinished=True)


def _name_of_unfinished(name: str) -> ObjectName | None:
    """Return the object that a file would have become: `folder/.name.01234567.unfinished`."""
    folder, _, file = name.rpartition("/")
    return ObjectName.parse(f"{folder}/{file[1:-_UNFINISHED_TAIL]}")


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
