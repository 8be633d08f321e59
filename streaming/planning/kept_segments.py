"""Driver: rest of one partition in an archive, and the reasons why a cut in front of it cannot be restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shallow_mirror.checkpoints.ledger import VISIBLE
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.types import SourcePartition

FirstRecord = tuple[int, int | None] | None
"""Offset and time of the first record of a partition; the time is None if it has none. None: no record."""


@dataclass(frozen=True, slots=True)
class KeptSegments:
    """Visible rows of one partition up to a decision, behind deletions by retention."""

    source: SourcePartition
    rows: Sequence[ArchiveRow]
    start: int
    """Begin of the rows."""
    expired_end: int | None
    """End of the rows that retention has deleted. None without such rows."""
    end: int
    """Of all rows up to the decision."""
    position: int
    """Of all rows of the partition."""
    registered_at_ms: int

    @classmethod
    def of(cls, rows: Sequence[ArchiveRow], last_decision: int) -> KeptSegments | None:
        """Return those of a partition, from its rows of every state; None if it has no row up to the decision.

        Rows without an object stay when older data has expired: rows in front of the deleted ones are not kept either.
        """
        up_to = [row for row in rows if row.micro_batch <= last_decision]
        if not up_to:
            return None
        expired_end = max((row.segment.source_end for row in rows if row.state not in VISIBLE), default=None)
        start = min(row.segment.source_start for row in up_to) if expired_end is None else expired_end
        return cls(
            source=up_to[0].segment.source,
            rows=[row for row in up_to if row.state in VISIBLE and row.segment.source_start >= start],
            start=start,
            expired_end=expired_end,
            end=max(row.segment.source_end for row in up_to),
            position=max(row.segment.source_end for row in rows),
            registered_at_ms=min(row.decided_at_ms for row in rows),
        )

    def may_lack_records(self, end: int, time_ms: int | None) -> bool:
        """Return whether records in front of a cut may have been lost, so that it matters whether any is left there."""
        began_late = time_ms is not None and self.start > 0 and time_ms < self.registered_at_ms
        return end < self.position and (self.expired_end is not None or began_late)

    def may_hold_records_until(self, time_ms: int) -> bool:
        """Return whether a batch of any kind has a base timestamp up to a time."""
        timestamps = (None if row.stored is None else row.stored.min_timestamp_ms for row in self.rows)
        return any(timestamp_ms is not None and timestamp_ms <= time_ms for timestamp_ms in timestamps)

    def problem_of_end(self, end: int, time_ms: int | None, first: FirstRecord) -> str | None:
        """Return why the records in front of a cut are not in the archive; None if they are, or if there were none.

        To be asked if `may_lack_records`. `end`: of the cut in this partition. `time_ms`: of the cut, None for a cut by
        decision. `first`: the first record that a consumer sees; control batches and aborted records are nothing to restore.
        """
        if end > self.start and (first is None or first[0] >= end):
            end = self.start
        if end > self.start:
            return None
        if self.expired_end is not None and end <= self.expired_end < self.position:
            why = "what was archived before it has expired"
        elif self.expired_end is not None and end < self.expired_end:
            why = "all that was archived has expired"
        elif time_ms is not None and self.start > 0 and end < self.position and time_ms < self.registered_at_ms:
            why = "the archive began after the cut"
        else:
            return None
        since = "" if first is None or first[1] is None else f", with records from {_time(first[1])} on"
        return (
            f"{self.source.topic_partition}: {why}; it has offsets {self.start} to {self.position}{since}: choose a later cut, "
            "or exclude the topic"
        )


def nothing_in_front_of(time_ms: int, firsts: Sequence[tuple[KeptSegments, FirstRecord]]) -> str | None:
    """Return the problem of a time in front of which no partition has a record; None if there are no records at all.

    `firsts`: of each partition, with its first record that a consumer sees.
    """
    times = [(first[1], kept.source) for kept, first in firsts if first is not None and first[1] is not None]
    if not times:
        return None
    first_ms, source = min(times)
    if any(kept.may_hold_records_until(time_ms) for kept, _ in firsts):
        why = f"in every partition the first record is newer than {_time(time_ms)}, and older ones lie behind it: the earliest"
    else:
        why = f"{_time(time_ms)} is before every record of the archive: the oldest"
    return f"until.time: {why} is of {_time(first_ms)} ({source.topic_partition}); choose a later time"


def _time(at_ms: int) -> str:
    """Return a timestamp as a date. Producers set them: some are none."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
