"""Planner process: partitions whose leaders do not report log ends, and when partitions that slots left out are due again."""

from __future__ import annotations

from collections.abc import Mapping

from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.sinks import Side
from shallow_mirror.streaming.planning.left_out_partitions import LeftOutPartition
from shallow_mirror.streaming.planning.source_offsets import LogEnds
from shallow_mirror.types import SourcePartition

REPORT_AFTER_MS = 10_000
"""A partition without an answer is reported as left out after so long: an election takes moments, and the controller notices a
killed leader after the 9 s of broker.session.timeout.ms."""


class SourceFailures:
    """Over the life of a query."""

    def __init__(self) -> None:
        self._since_ms: dict[SourcePartition, int] = {}
        self._returned: set[SourcePartition] = set()

    def update(self, listing: LogEnds, now_ms: int, *, at_once: bool = False) -> tuple[LeftOutPartition, ...]:
        """Take over a listing of the source; return the partitions to report. Definite errors are reported at once.

        `at_once`: all are.
        """
        self._returned.update(source for source in self._since_ms if source in listing.ends)
        self._since_ms = {source: self._since_ms.get(source, now_ms) for source in listing.unanswered}
        return tuple(
            _left_out(source, error, since_ms, now_ms)
            for source, error in sorted(listing.unanswered.items(), key=lambda item: item[0])
            if (since_ms := self._since_ms[source]) <= now_ms - REPORT_AFTER_MS
            or at_once
            or not isinstance(error, RetriableError)
        )

    def not_due(
        self, left_out: Mapping[SourcePartition, LeftOutPartition], listing: LogEnds, now_ms: int
    ) -> set[SourcePartition]:
        """Return the partitions of `left_out` not due for another try; a leader that is back makes its own due at once."""
        not_due = set()
        for source, entry in left_out.items():
            is_back = entry.side is Side.SOURCE and source in self._returned
            if source in listing.ends and not is_back and not entry.is_due(now_ms):
                not_due.add(source)
        self._returned.clear()
        return not_due


def _left_out(source: SourcePartition, error: MirrorError, since_ms: int, now_ms: int) -> LeftOutPartition:
    is_retriable = isinstance(error, RetriableError)
    return LeftOutPartition(
        source=source,
        side=Side.SOURCE,
        error_name=error.error_name if isinstance(error, RetriableError) else type(error).__name__,
        reason=error.detail if isinstance(error, RetriableError) else str(error),
        since_ms=since_ms,
        is_definite=not is_retriable,
        tried_at_ms=now_ms,
    )
