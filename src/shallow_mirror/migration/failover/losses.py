"""Pure: how many records a group repeats and lacks at the target at most, as far as the tables and the target's logs tell.

The newest offset that was recorded for a group is at most as far as the group had read. What it has read since is read again:
at most all records that are mirrored behind that offset, with preserved offsets also those that no row names because the mirror
was killed before the decision. What was never mirrored is missing: at least what the mirror had seen
of the source's log ends; of records that came later nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shallow_mirror.groups.report import GroupPartition, GroupsReport, Outcome
from shallow_mirror.types import COPIED_KINDS, Segment, SourcePartition

_KEYS = ("source_topic", "source_topic_id", "source_partition")
COUNT_COLUMNS = [*_KEYS, "source_start", "source_end", "record_count", "kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoss:
    """Of one group in one partition. Counts of offsets may include markers and what compaction has removed."""

    partition: GroupPartition
    repeated_records: int | None
    """At most; None: unknown, the recorded offset leads nowhere."""
    missing_offsets: int | None
    """Seen at the source, not mirrored and not read by the group; at least. None: the mirror has recorded no log end."""
    read_ahead_offsets: int
    """That the group had read and that are not mirrored."""

    def document(self) -> dict[str, Any]:
        partition = self.partition
        place = partition.to_topic_partition
        return {
            "topic": partition.topic_partition.topic,
            "partition": partition.topic_partition.partition,
            "offset": partition.offset,
            "to_topic": None if place is None else place.topic,
            "to_partition": None if place is None else place.partition,
            "to_offset": partition.to_offset,
            "outcome": partition.outcome.value,
            "repeated_records": self.repeated_records,
            "missing_offsets": self.missing_offsets,
            "read_ahead_offsets": self.read_ahead_offsets,
        }


class CopiedCounter:
    """Counts the copied records at or above offsets of the source. Takes rows in any order and in pieces of any size."""

    def __init__(self, offsets: Iterable[tuple[SourcePartition, int]]) -> None:
        self.counts = dict.fromkeys(offsets, 0)
        self._offsets: dict[SourcePartition, list[int]] = {}
        for source, offset in self.counts:
            self._offsets.setdefault(source, []).append(offset)

    @property
    def lowest(self) -> int:
        """Return the offset below which no row is needed."""
        return min((offset for _, offset in self.counts), default=0)

    def lowest_of(self, source: SourcePartition) -> int | None:
        """Return the offset below which no row of a partition is needed; None: none of its rows is."""
        return min(self._offsets.get(source, ()), default=None)

    def add(self, rows: pa.Table) -> None:
        """Add COUNT_COLUMNS of settled rows, or of copies behind them."""
        if not rows.num_rows:
            return
        kinds = rows.column("kind").cast(pa.string()).to_numpy(zero_copy_only=False)
        is_copied = np.isin(kinds, [kind.value for kind in COPIED_KINDS])
        starts, ends, counts = (
            np.asarray(rows.column(name).fill_null(0).to_numpy(), np.int64)
            for name in ("source_start", "source_end", "record_count")
        )
        codes = np.zeros(rows.num_rows, np.int64)
        columns = [rows.column(name).combine_chunks().dictionary_encode() for name in _KEYS]
        for column in columns:
            codes = np.unique(codes * len(column.dictionary) + column.indices.to_numpy(), return_inverse=True)[1].astype(np.int64)
        order = np.argsort(codes, kind="stable")
        bounds = np.append(np.flatnonzero(np.diff(codes[order], prepend=-1)), len(order))
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            at = order[first:end]
            source = SourcePartition(*(column[int(at[0])].as_py() for column in columns))
            at = at[is_copied[at]]
            for offset in self._offsets.get(source, ()):
                # A row whose records lie on both sides: those above are at most the offsets above.
                above = np.minimum(counts[at], np.maximum(0, ends[at] - np.maximum(starts[at], offset)))
                self.counts[source, offset] += int(above.sum())


def count_rows(segments: Iterable[Segment]) -> pa.Table:
    """Return COUNT_COLUMNS of segments that are in no table."""
    return pa.Table.from_pylist(
        [
            {
                "source_topic": segment.source.topic,
                "source_topic_id": segment.source.topic_id,
                "source_partition": segment.source.partition,
                "source_start": segment.source_start,
                "source_end": segment.source_end,
                "record_count": segment.record_count,
                "kind": segment.kind.value,
            }
            for segment in segments
        ]
    )


def to_count(report: GroupsReport) -> list[tuple[SourcePartition, int]]:
    """Return the offsets whose records behind them are counted."""
    return [
        (partition.source, partition.offset)
        for partition in report.partitions
        if partition.source is not None and partition.offset is not None and partition.outcome is not Outcome.NOT_MIRRORED
    ]


def losses_of(
    report: GroupsReport,
    copied: Mapping[tuple[SourcePartition, int], int],
    positions: Mapping[SourcePartition, int],
    seen_ends: Mapping[SourcePartition, int] | None,
) -> dict[str, list[PartitionLoss]]:
    """Return the losses by group. `positions`: where the map ends. `seen_ends`: of logs that were longer; None: unknown."""
    return {
        group.name: [
            _loss(partition, copied, positions, seen_ends)
            for partition in group.partitions
            if partition.outcome is not Outcome.NOT_MIRRORED
        ]
        for group in report.groups
    }


def _loss(
    partition: GroupPartition,
    copied: Mapping[tuple[SourcePartition, int], int],
    positions: Mapping[SourcePartition, int],
    seen_ends: Mapping[SourcePartition, int] | None,
) -> PartitionLoss:
    source, offset = partition.source, partition.offset
    if source is None or offset is None:
        return PartitionLoss(partition=partition, repeated_records=None, missing_offsets=None, read_ahead_offsets=0)
    position = positions.get(source, 0)
    unread_from = max(position, offset)
    missing = None if seen_ends is None else max(0, seen_ends.get(source, position) - unread_from)
    repeated = None if partition.to_offset is None else copied.get((source, offset), 0)
    return PartitionLoss(
        partition=partition,
        repeated_records=repeated,
        missing_offsets=missing,
        read_ahead_offsets=max(0, offset - position),
    )
