"""Pure: which part of an archive a query reads: conditions on the table's rows, and what is left of them.

Bounds never leave out a row that holds a wanted record. Producers set timestamps, so headers bound the times of records from
above only: the end of a time range leaves out nothing unless the caller says how far timestamps may be out of order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import Comparison, Condition
from shallow_mirror.types import SegmentKind

NO_END = (1 << 63) - 1
_FEW_TOPICS = 10
"""So many are looked for one by one; of more, the range of names is read from the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBounds:
    """All of them hold. Offsets are half-open, times inclusive; None: no bound.

    `disorder_ms`: records of a batch are at most so much older than its base timestamp. None: by any amount.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = NO_END
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    disorder_ms: int | None = None

    def of_topics(self, names: frozenset[str]) -> ReadBounds:
        return replace(self, topics=names if self.topics is None else self.topics & names)

    def of_partitions(self, numbers: frozenset[int]) -> ReadBounds:
        return replace(self, partitions=numbers if self.partitions is None else self.partitions & numbers)

    def from_offset(self, offset: int) -> ReadBounds:
        return replace(self, start_offset=max(self.start_offset, offset))

    def up_to_offset(self, end: int) -> ReadBounds:
        return replace(self, end_offset=min(self.end_offset, end))

    def from_time(self, timestamp_ms: int) -> ReadBounds:
        bound = timestamp_ms if self.min_timestamp_ms is None else max(self.min_timestamp_ms, timestamp_ms)
        return replace(self, min_timestamp_ms=bound)

    def up_to_time(self, timestamp_ms: int) -> ReadBounds:
        bound = timestamp_ms if self.max_timestamp_ms is None else min(self.max_timestamp_ms, timestamp_ms)
        return replace(self, max_timestamp_ms=bound)

    @property
    def is_empty(self) -> bool:
        return self.start_offset >= self.end_offset or self.topics == frozenset() or self.partitions == frozenset()

    def conditions(self) -> tuple[Condition, ...]:
        """Return conditions that read all rows that may match, each once; `filter_rows` leaves out the rest."""
        if self.is_empty:
            return ()
        condition: list[Comparison] = [
            Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value),
            Comparison("kind", "=", SegmentKind.DATA.value),
            *self._of_partition_numbers(),
        ]
        if self.start_offset > 0:
            condition.append(Comparison("source_end", ">", self.start_offset))
        if self.end_offset < NO_END:
            condition.append(Comparison("source_start", "<=", self.end_offset - 1))
        if self.is_bounded_below:
            assert self.min_timestamp_ms is not None
            condition.append(Comparison("max_timestamp_ms", ">", self.min_timestamp_ms - 1))
        if self.topics is None:
            return (tuple(condition),)
        if len(self.topics) <= _FEW_TOPICS:
            return tuple((Comparison("source_topic", "=", topic), *condition) for topic in sorted(self.topics))
        return ((*self._between_topics(self.topics), *condition),)

    def of_partitions_only(self) -> Condition:
        """Return conditions for all rows of the wanted partitions, of any offset, time and state, and by chance others."""
        return (*self.of_topics_only(), *self._of_partition_numbers())

    def of_topics_only(self) -> Condition:
        """Return conditions for all rows of the wanted topics, of any partition, and by chance others."""
        if not self.topics:
            return ()
        if len(self.topics) == 1:
            return (Comparison("source_topic", "=", min(self.topics)),)
        return self._between_topics(self.topics)

    def _of_partition_numbers(self) -> Condition:
        if not self.partitions:
            return ()
        lowest, highest = min(self.partitions), max(self.partitions)
        return Comparison("source_partition", "<=", highest), Comparison("source_partition", ">", lowest - 1)

    @staticmethod
    def _between_topics(topics: frozenset[str]) -> Condition:
        # Texts are compared by their code points everywhere: a text is above what it begins with.
        return Comparison("source_topic", ">", min(topics)[:-1]), Comparison("source_topic", "<=", max(topics))

    @property
    def is_bounded_below(self) -> bool:
        """Return whether times leave out rows. Records without a time have -1, and their rows no maximum."""
        return self.min_timestamp_ms is not None and self.min_timestamp_ms >= 0

    @property
    def run_min_timestamp_ms(self) -> int | None:
        """Return the bound for runs of an index."""
        return self.min_timestamp_ms if self.is_bounded_below else None

    def filter_rows(self, rows: pa.Table) -> pa.Table:
        """Return the rows that may hold something wanted."""
        if self.topics is not None:
            rows = rows.filter(pc.is_in(rows["source_topic"], value_set=pa.array(sorted(self.topics), pa.string())))
        if self.partitions is not None:
            rows = rows.filter(pc.is_in(rows["source_partition"], value_set=pa.array(sorted(self.partitions), pa.int32())))
        if self.max_timestamp_ms is not None and self.disorder_ms is not None:
            newest = pa.scalar(self.max_timestamp_ms + self.disorder_ms, pa.int64())
            rows = rows.filter(pc.fill_null(pc.less_equal(rows["min_timestamp_ms"], newest), True))
        return rows

    def holds(self, offset: int, timestamp_ms: int) -> bool:
        """Return whether a record of a row that matches is wanted."""
        return (
            self.start_offset <= offset < self.end_offset
            and (self.min_timestamp_ms is None or timestamp_ms >= self.min_timestamp_ms)
            and (self.max_timestamp_ms is None or timestamp_ms <= self.max_timestamp_ms)
        )
