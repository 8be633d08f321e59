"""Driver: source logs that were cut below a position, where the mirror file lets the mirror continue behind it.

Copied records stay: they were in the source's log at that time, and settled rows are never removed. The mirror
continues at its position, so that no source offset has two answers. Other records that the source now holds below the position
are not copied: they are reported, with their offsets.
"""

from __future__ import annotations

from collections.abc import Mapping

from shallow_mirror.checkpoints import Position
from shallow_mirror.errors import LogTruncatedError, RetriableError
from shallow_mirror.types import EpochEnd, SourcePartition

SOURCE_LOG_TRUNCATED = "SOURCE_LOG_TRUNCATED"
"""Name of the error of a log that ends below the position, or was cut while it was read: the read is retried."""


class TruncatedLogs:
    """The last truncation of each partition behind which the mirror continues, in one query."""

    def __init__(self) -> None:
        self._accepted: dict[SourcePartition, LogTruncatedError] = {}
        self._unreported: dict[SourcePartition, LogTruncatedError] = {}

    def accept(self, loss: LogTruncatedError, positions: Mapping[SourcePartition, int]) -> None:
        """Let the next round continue behind the position without comparing leader epochs there.

        Raises RetriableError if there is nothing behind the position yet, and if more had been read than was decided: the
        next try finds out what the log holds from the position on.
        """
        if loss.log_end is not None:
            raise RetriableError(SOURCE_LOG_TRUNCATED, str(loss)) from loss
        topic_partition = loss.topic_partition
        source = SourcePartition(topic_partition.topic, loss.topic_id, topic_partition.partition)
        accepted = self._accepted.get(source)
        is_again = accepted is not None and accepted.expected_offset == loss.expected_offset
        if is_again or loss.expected_offset > positions.get(source, -1):
            raise RetriableError(SOURCE_LOG_TRUNCATED, f"{loss}; it was truncated while it was read") from loss
        self._accepted[source] = self._unreported[source] = loss

    def epoch_ends(self, positions: Mapping[SourcePartition, Position]) -> dict[SourcePartition, EpochEnd]:
        """Return the end of each source partition's last leader epoch, without those that are known to be cut there."""
        return {
            source: position.epoch_end
            for source, position in positions.items()
            if position.epoch_end and not self._is_accepted(source, position.epoch_end)
        }

    def _is_accepted(self, source: SourcePartition, read: EpochEnd) -> bool:
        accepted = self._accepted.get(source)
        return accepted is not None and accepted.expected_offset == read.end

    def take_unreported(self) -> tuple[LogTruncatedError, ...]:
        """Return each accepted truncation once."""
        losses = tuple(self._unreported.values())
        self._unreported = {}
        return losses
