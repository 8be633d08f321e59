"""Driver: target logs that hold records already and are continued with the source's offsets: compared before the first row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.preserved import (
    ExistingLog,
    continued_rows,
    problem_of_differences,
    problem_of_ends,
    problem_of_later_end,
    problem_without_records,
)
from shallow_mirror.types import LATEST_TIMESTAMP, IsolationLevel, OffsetRange, TopicPartition
from shallow_mirror.verify import ClusterReader, compare_logs

_log = logging.getLogger(__name__)


class ContinuedLogs:
    """Of one mirror. `start_step` shows the step of a start; `deadline`: of one round of requests, over at once at a stop."""

    def __init__(self, config: MirrorConfig, start_step: Callable[[str, str], None], deadline: Callable[[], Deadline]) -> None:
        self._config = config
        self._start_step = start_step
        self._deadline = deadline

    def with_existing(self, rows: Sequence[DecidedSegment]) -> tuple[DecidedSegment, ...]:
        """Return first rows; instead of that of a log that is continued, rows of its records.

        Raises ConfigError with every log that cannot be continued, and as `compare_logs`.
        """
        of_topics = {_key(row): row for row in rows if self._config.topics.is_continued(row.segment.source.topic)}
        if not of_topics:
            return tuple(rows)
        with ExitStack() as stack:
            source = stack.enter_context(self._reader(self._config.source.client, self._config.source_cluster_name))
            target = stack.enter_context(self._reader(self._config.target.client, self._config.target_cluster_name))
            logs = self._existing_logs(list(of_topics.values()), source, target)
            continued = self._compared(logs, of_topics, source, target) if logs else {}
        return tuple(new for row in rows for new in continued.get(_key(row), (row,)))

    def _reader(self, client: ClientConfig, where: str) -> ClusterReader:
        read = self._config.read
        return ClusterReader(client, where, read.isolation_level, fetch_bytes=read.fetch_bytes, clock=self._deadline().clock)

    def _existing_logs(self, rows: Sequence[DecidedSegment], source: ClusterReader, target: ClusterReader) -> list[ExistingLog]:
        """Return the logs that hold something. Raises ConfigError if their ends exclude it."""
        # The target is asked first: what it has then, the source must have.
        target.load_metadata(_key(row) for row in rows)
        keys = [_key(row) for row in rows if target.has(_key(row))]
        ends = self._ends(target.cluster, keys, IsolationLevel.READ_UNCOMMITTED)
        stable_ends = self._ends(target.cluster, keys, IsolationLevel.READ_COMMITTED)
        source.load_metadata(row.segment.source.topic_partition for row in rows)
        logs = [
            ExistingLog(
                source=row.segment.source.topic_partition,
                target=_key(row),
                source_start=source.log_view(row.segment.source.topic_partition).log_start,
                source_end=source.log_view(row.segment.source.topic_partition).log_end,
                start=target.log_view(_key(row)).log_start,
                end=ends[_key(row)],
                stable_end=stable_ends[_key(row)],
            )
            for row in rows
            if ends.get(_key(row), 0) > 0
        ]
        _refuse(problem_of_ends(log) for log in logs)
        return logs

    def _compared(
        self,
        logs: Sequence[ExistingLog],
        first_rows: dict[TopicPartition, DecidedSegment],
        source: ClusterReader,
        target: ClusterReader,
    ) -> dict[TopicPartition, tuple[DecidedSegment, ...]]:
        """Return the rows of each log, by target partition. Raises ConfigError if one differs from the source."""
        offsets = counted(sum(log.end - log.compared_from for log in logs), "offset")
        self._start_step("comparing logs that are continued", f": {counted(len(logs), 'partition')}, {offsets} on both clusters")
        comparisons = {log: compare_logs(source, target, log.source, log.target, log.end, lambda _position: None) for log in logs}
        # Records show that both are logs of one topic. A partition that has none follows those that have.
        shown_topics = {log.target.topic for log, compared in comparisons.items() if compared.record_count}
        rows, problems = {}, list[str | None]()
        for log, compared in comparisons.items():
            problem = problem_of_differences(log, [difference.sentence for difference in compared.differences])
            if problem is None and log.target.topic not in shown_topics:
                problem = problem_without_records(log)
            problems.append(problem)
            if problem is not None:
                continue
            rows[log.target] = continued_rows(
                first_rows[log.target],
                log,
                record_count=compared.record_count,
                size_bytes=compared.size_bytes,
                holes=compared.holes if compared.record_count else [OffsetRange(log.compared_from, log.end)],
            )
            _log.info(
                "target partition %s is continued: both clusters hold the same %s at offsets %d to %d",
                log.target,
                counted(compared.record_count, "record"),
                compared.start,
                compared.end - 1,
            )
        _refuse(problems)
        target.cluster.forget_metadata()  # a leader that is deposed, and has not noticed, would answer as before
        ends = self._ends(target.cluster, [log.target for log in logs], IsolationLevel.READ_UNCOMMITTED)
        _refuse(problem_of_later_end(log, ends[log.target]) for log in logs)
        return rows

    def _ends(self, cluster: Cluster, keys: Sequence[TopicPartition], isolation: IsolationLevel) -> dict[TopicPartition, int]:
        if not keys:
            return {}
        listed = cluster.list_offsets(dict.fromkeys(keys, LATEST_TIMESTAMP), isolation, self._deadline())
        return {key: listed[key].offset for key in keys}


def _key(row: DecidedSegment) -> TopicPartition:
    return row.segment.target.topic_partition


def _refuse(problems: Iterable[str | None]) -> None:
    """Raise ConfigError if there are problems."""
    found_problems = [problem for problem in problems if problem is not None]
    if found_problems:
        raise ConfigError(found_problems)
