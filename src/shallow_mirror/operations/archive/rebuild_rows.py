"""Driver, for the cli: the rows of a rebuilt table, of footers and of copies of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import pyarrow as pa

from shallow_mirror.archive_format import ObjectName
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.rows import SegmentState, decided_segment_of
from shallow_mirror.checkpoints.tables import ms_of
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.object_check import read_footer
from shallow_mirror.operations.archive.rebuild_choice import CopiedDecision, FooterSummary, Partitions

VISIBLE_STATE = SegmentState.COPY_SEGMENT_FINISHED


class RebuiltRows:
    """The rows of chosen objects with their states. `names`: of the objects that are in the store."""

    def __init__(self, store: ObjectStore, copies: CopiesByObject, names: Set[str]) -> None:
        self._store, self._copies, self._names = store, copies, names

    def object(self, summary: FooterSummary) -> list[tuple[DecidedSegment, SegmentState]]:
        name = str(summary.name)
        if name not in self._names:
            return [(row, SegmentState.DELETE_SEGMENT_FINISHED) for row in self._copies.of_object(name)]
        # A copy says that the deletion has begun: the next owner of the table finishes it.
        state = SegmentState.DELETE_SEGMENT_STARTED if name in self._copies.numbers_of_object else VISIBLE_STATE
        return [
            (DecidedSegment(row.segment, None, row.stored), VISIBLE_STATE if row.stored is None else state)
            for row in read_footer(self._store, name).rows
        ]


class CopiesByObject:
    """Copies of rows, by the objects that they name. False if there is none."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self.numbers_of_object: dict[str, list[int]] = {}
        without_object: dict[tuple[int, int, int], list[int]] = {}
        decisions = (rows["run_epoch"].to_pylist(), rows["micro_batch"].to_pylist(), rows["decided_at"].to_pylist())
        self._decided_at_ms = [ms_of(at) for at in decisions[2]]
        for number, name in enumerate(rows["object_name"].to_pylist()):
            if name is not None:
                self.numbers_of_object.setdefault(name, []).append(number)
            else:
                decision = decisions[0][number], decisions[1][number], self._decided_at_ms[number]
                without_object.setdefault(decision, []).append(number)
        self.without_object = [
            CopiedDecision(*decision, tuple(self._segments(numbers))) for decision, numbers in without_object.items()
        ]

    def __bool__(self) -> bool:
        return len(self._rows) > 0

    def decided_at_ms(self, name: str) -> int | None:
        numbers = self.numbers_of_object.get(name)
        return None if numbers is None else self._decided_at_ms[numbers[0]]

    def of_object(self, name: str) -> list[DecidedSegment]:
        return self._segments(self.numbers_of_object[name])

    def deleted_objects(self, names: Set[str], partitions: Partitions) -> Iterator[FooterSummary]:
        """Yield the objects that are not in the store. `names`: of those that are."""
        for name, numbers in self.numbers_of_object.items():
            parsed = ObjectName.parse(name)
            if name not in names and parsed is not None:
                at_ms = self._decided_at_ms[numbers[0]]
                yield FooterSummary.of(parsed, at_ms, self._segments(numbers), partitions, is_proven=True)

    def _segments(self, numbers: Sequence[int]) -> list[DecidedSegment]:
        # An object that is gone has no index.
        return [decided_segment_of(row | {"index": []}) for row in self._rows.take(numbers).to_pylist()]
