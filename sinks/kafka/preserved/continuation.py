"""Pure: whether a target log that holds records already may be continued with the offsets of the source, and its rows of the map.

That is sound where each of its offsets holds what the source has there, or nothing on both sides, and where nothing else will be
appended to it (docs/design/preserved-offsets.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.types import OffsetRange, SegmentKind, TopicPartition

INSTEAD = (
    "Mirror the topic to a new one (topics.target_name) with topics.offsets: preserved, or use topics.offsets: translated, "
    "which copies all of it, also what the target holds already"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingLog:
    """A partition of the source, [source_start, source_end), and the log [start, end) of the target that is to be continued.

    `stable_end`: the last stable offset of the target's log.
    """

    source: TopicPartition
    target: TopicPartition
    source_start: int
    source_end: int
    start: int
    end: int
    stable_end: int

    @property
    def compared_from(self) -> int:
        """Return the first offset that both logs still have."""
        return max(self.start, self.source_start)


def problem_of_ends(log: ExistingLog) -> str | None:
    """Return why a log cannot be continued, as its ends alone show it; None if the records have to be compared."""
    if log.stable_end < log.end:
        return (
            f"target partition {log.target} has an open transaction from offset {log.stable_end} on, and the marker that ends it "
            f"takes an offset of the source: let it end, or end it with kafka-transactions.sh. {INSTEAD}"
        )
    if log.end > log.source_end:
        return (
            f"target partition {log.target} ends at {log.end}, source partition {log.source} at {log.source_end}: offsets "
            f"{log.source_end} to {log.end - 1} of the target were never mirrored to the source. {INSTEAD}"
        )
    if log.compared_from >= log.end:
        return (
            f"target partition {log.target} has offsets {log.start} to {log.end}, source partition {log.source} begins at "
            f"{log.source_start}: no offset is left on both that could be compared. {INSTEAD}"
        )
    return None


def problem_of_differences(log: ExistingLog, differences: Sequence[str]) -> str | None:
    """Return why a log cannot be continued after its records were compared. `differences`: a sentence for each."""
    if not differences:
        return None
    more = f" (and {len(differences) - 1:,} more differences)" if len(differences) > 1 else ""
    return (
        f"target partition {log.target} cannot be continued, it does not hold what source partition {log.source} has at the "
        f"same offsets: {differences[0]}{more}. What only the target has was never mirrored to the source. {INSTEAD}"
    )


def problem_without_records(log: ExistingLog) -> str:
    """Return why a log without records cannot be continued, if no other log of its topic had a record to compare."""
    return (
        f"target partition {log.target} cannot be continued: from offset {log.compared_from} to {log.end} neither side has a "
        f"record that could be compared, and no other partition of the topic has. {INSTEAD}"
    )


def problem_of_later_end(log: ExistingLog, end: int) -> str | None:
    """Return a sentence if the log no longer ends at the offset that was compared."""
    if end == log.end:
        return None
    return (
        f"target partition {log.target} ended at {log.end} before it was compared with the source, and now ends at {end}: "
        "another producer writes to it. Take its Write permission away, and start the mirror again"
    )


def continued_rows(
    first_row: DecidedSegment, log: ExistingLog, *, record_count: int, size_bytes: int, holes: Sequence[OffsetRange]
) -> tuple[DecidedSegment, ...]:
    """Return rows of the map for the existing log: [log.start, log.end), in which every offset leads to itself.

    `holes`: offsets without a record, ascending. Counts are in the first row that was compared.
    """
    rows = []
    for start, end, kind in _ranges(log, holes):
        is_data = kind is SegmentKind.DATA
        segment = replace(
            first_row.segment,
            source_start=start,
            source_end=end,
            kind=kind,
            target_start=start if is_data else None,
            target_end=end if is_data else None,
        )
        if is_data and start >= log.compared_from and record_count:
            segment = replace(segment, record_count=record_count, size_bytes=size_bytes)
            record_count = 0
        rows.append(DecidedSegment(segment, None, is_continued=True))
    return tuple(rows)


def _ranges(log: ExistingLog, holes: Sequence[OffsetRange]) -> Iterator[tuple[int, int, SegmentKind]]:
    """Yield the ranges of [log.start, log.end). Offsets below the source's start are a range of their own, not compared."""
    at = log.start
    cuts = [OffsetRange(log.compared_from, log.compared_from), *holes]
    for hole in cuts:
        if hole.start > at:
            yield at, hole.start, SegmentKind.DATA
        if hole.end > hole.start:
            yield hole.start, hole.end, SegmentKind.GAP
        at = max(at, hole.end)
    if log.end > at:
        yield at, log.end, SegmentKind.DATA
