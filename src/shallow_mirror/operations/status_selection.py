"""The topics and partitions of a status report to show, those that need attention first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.status import StatusReport
from shallow_mirror.streaming.watch import PartitionStatus

_LEFT_OUT, _UNKNOWN, _LAGS, _PAUSED, _IN_ORDER = range(5)


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ConfigError for values of --topic that are no regular expressions."""
    problems = []
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            problems.append(f"--topic: {pattern!r} is not a regular expression: {error}")
    if problems:
        raise ConfigError(problems)


def only_topics(report: StatusReport, patterns: Sequence[str]) -> StatusReport:
    """Return the report of the source topics whose whole name matches one of the regular expressions; of all without any.

    The run, its micro-batches, the quarantine, and problems that concern no single topic are the whole mirror's. Raises
    ConfigError when no topic matches.
    """
    if not patterns:
        return report

    def is_selected(topic: str) -> bool:
        return any(re.fullmatch(pattern, topic) for pattern in patterns)

    selected = replace(
        report,
        partitions=tuple(entry for entry in report.partitions if is_selected(entry.source.topic)),
        open_transactions=tuple(entry for entry in report.open_transactions if is_selected(entry.source.topic)),
        left_out=tuple(entry for entry in report.left_out if is_selected(entry.source.topic)),
        paused_topics=tuple(entry for entry in report.paused_topics if is_selected(entry.topic)),
        gone_topics=tuple(topic for topic in report.gone_topics if is_selected(topic)),
        topics=tuple(entry for entry in report.topics if is_selected(entry.topic)),
        problems=tuple(
            entry for entry in report.problems if entry.problem.source_topic is None or is_selected(entry.problem.source_topic)
        ),
    )
    if not (selected.partitions or selected.left_out or selected.paused_topics or selected.gone_topics):
        given = ", ".join(patterns)
        raise ConfigError(
            f"--topic: no topic of {report.mirror} matches {given}: give the whole name of a source topic, or a regular "
            "expression for it. `status --all` shows every topic"
        )
    return selected


class Attention:
    """The partitions of a report by what an operator has to look at first."""

    def __init__(self, report: StatusReport) -> None:
        self._left_out = {entry.source for entry in report.left_out}
        self._paused = {entry.topic for entry in report.paused_topics} | set(report.gone_topics)
        self.partitions = tuple(sorted(report.partitions, key=self._order))
        """Left out, of unknown lag, behind (the oldest record first), of paused or deleted topics, then all others."""

    def is_needed(self, partition: PartitionStatus) -> bool:
        return self._rank(partition) != _IN_ORDER

    def _order(self, partition: PartitionStatus) -> tuple[int, int, int]:
        # sorted() is stable: partitions without a difference keep the order of their names.
        return self._rank(partition), -(partition.lag_ms or 0), -(partition.lag_offsets or 0)

    def _rank(self, partition: PartitionStatus) -> int:
        if partition.source in self._left_out:
            return _LEFT_OUT
        # Before the lag: the source of a deleted topic reports none, and a paused topic lags on purpose.
        if partition.source.topic in self._paused:
            return _PAUSED
        if partition.lag_offsets is None:
            return _UNKNOWN
        return _LAGS if partition.lag_offsets else _IN_ORDER
