"""Driver: check of topics with preserved offsets, and the cost of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted
from shallow_mirror.preflight.findings import Finding, Level, of_problems
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.sinks.kafka.preserved import INSTEAD, MOST_LEADING_FILLERS, read_guard_times, require_agreed
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.types import LATEST_TIMESTAMP, IsolationLevel, OffsetRange, SourcePartition, TopicPartition
from shallow_mirror.wire.records import FILLER_KEY, filler_record

_FILLERS_PER_S = 2_700_000
"""Measured on two cores (docs/concepts/preserved-offsets.md)."""
_MS_PER_HOUR = 3_600_000
_NOT_ALL_CLIENTS = (
    "readers need a client that passes over fillers (Java and franz-go do; librdkafka does, and reports MSG_SIZE_TOO_LARGE, "
    "which applications have to ignore; kafka-python does not)"
)


class PreservedTopics:
    """Checks the topics that a mirror file preserves. Raises RetriableError if a cluster does not answer."""

    def __init__(self, config: MirrorConfig, source: Cluster, target: Cluster, deadline: Callable[[], Deadline]) -> None:
        self._config = config
        self._source = source
        self._target = target
        self._deadline = deadline

    def findings(
        self,
        plans: Mapping[str, TargetPlan],
        positions: Mapping[SourcePartition, Position],
        backlogs: Mapping[SourcePartition, OffsetRange],
        left_out: Collection[str],
    ) -> list[Finding]:
        """`plans`: of the target topics, by source topic. `backlogs`: ranges to copy of each partition.

        `left_out`: source topics whose target topics are not compared, as a run leaves them out.
        """
        preserved = {source: plan for source, plan in plans.items() if self._config.topics.is_preserved(source)}
        if not preserved:
            return []
        findings = list(self._of_brokers())
        try:
            require_agreed({key: at for key, at in positions.items() if key.topic in preserved}, self._config.topics.is_preserved)
        except ConfigError as error:
            findings += of_problems("topics.offsets", error)
        new = [source for source in backlogs if source.topic in preserved and source not in positions]
        ends = self._existing_ends(preserved, new)
        findings += self._of_existing_logs(preserved, ends, backlogs)
        compared = {source: plan for source, plan in preserved.items() if source not in left_out}
        findings += self._of_settings(compared, {source.topic for source in positions})
        empty = [source for source in new if source not in ends]
        compacted = {source for source, plan in preserved.items() if target_topic_policy.is_compacted(plan.settings)}
        for are_compacted in (False, True):
            starts = [backlogs[source].start for source in empty if (source.topic in compacted) is are_compacted]
            findings += _of_first_offsets(starts, are_compacted=are_compacted)
        if any(backlogs[source].end for source in new):
            what = f"offsets without a record (transactions, compaction) become fillers: {_NOT_ALL_CLIENTS}"
            findings.append(Finding(Level.DOUBT, "topics.offsets", what))
        return findings

    def _of_brokers(self) -> Iterator[Finding]:
        subject = f"cluster {self._config.target.alias}"
        try:
            times = read_guard_times(self._target, self._config.write.transaction_timeout_ms, self._deadline())
        except ConfigError as error:
            yield Finding(Level.STOPS, subject, str(error))
            return
        yield Finding(
            Level.DOUBT,
            subject,
            f"forgets a producer after {times.expiration_ms / _MS_PER_HOUR:g} hours: batches whose records are older than half "
            "of that are sent with the current time, so that look-ups by time and retention.ms count from the time of copying. "
            "A higher producer.id.expiration.ms avoids that",
        )

    def _existing_ends(self, preserved: Mapping[str, TargetPlan], new: Sequence[SourcePartition]) -> dict[SourcePartition, int]:
        """Return the ends of target logs that are not empty, by partition of the source."""
        keys = {
            source: TopicPartition(preserved[source.topic].topic, source.partition)
            for source in new
            if preserved[source.topic].exists and source.partition < preserved[source.topic].partition_count
        }
        if not keys:
            return {}
        wanted = dict.fromkeys(keys.values(), LATEST_TIMESTAMP)
        listed = self._target.list_offsets(wanted, IsolationLevel.READ_UNCOMMITTED, self._deadline())
        return {source: listed[key].offset for source, key in keys.items() if listed[key].offset}

    def _of_existing_logs(
        self,
        preserved: Mapping[str, TargetPlan],
        ends: Mapping[SourcePartition, int],
        backlogs: Mapping[SourcePartition, OffsetRange],
    ) -> Iterator[Finding]:
        for source, end in ends.items():
            key = TopicPartition(preserved[source.topic].topic, source.partition)
            if not self._config.topics.is_continued(source.topic):
                what = (
                    f"is not new, its log ends at {end:,}: with preserved offsets a mirror begins with an empty topic. Delete "
                    "it, name another one (topics.target_name), use topics.offsets: continued where it holds the source's "
                    "records at their offsets, or translated"
                )
                yield Finding(Level.STOPS, f"target partition {key}", what)
            elif end > backlogs[source].end:
                what = (
                    f"ends at {end:,}, the source at {backlogs[source].end:,}: what only the target has was never mirrored to "
                    f"the source. {INSTEAD}"
                )
                yield Finding(Level.STOPS, f"target partition {key}", what)
            else:
                what = (
                    f"is continued at offset {end:,} if both clusters hold the same below it: {end - backlogs[source].start:,} "
                    "offsets are read from both at the first start"
                )
                yield Finding(Level.DOUBT, f"target partition {key}", what)

    def _of_settings(self, preserved: Mapping[str, TargetPlan], begun: Collection[str]) -> Iterator[Finding]:
        existing = {source: plan for source, plan in preserved.items() if plan.exists and plan.settings}
        try:
            sources = self._source.topic_configs(sorted(existing), self._deadline()) if existing else {}
        except ConfigError as error:
            yield Finding(Level.STOPS, "topics.offsets", f"the settings of source topics cannot be read: {error}")
            return
        for source, plan in existing.items():
            for problem in target_topic_policy.preserving_problems(plan.settings, sources[source], is_begun=source in begun):
                yield Finding(Level.STOPS, f"target topic {plan.topic}", problem)


def _of_first_offsets(starts: Sequence[int], *, are_compacted: bool) -> Iterator[Finding]:
    fillers = [start for start in starts if start]
    if fillers and max(fillers) > MOST_LEADING_FILLERS:
        most = f"{MOST_LEADING_FILLERS:,}"
        what = f"a partition begins at offset {max(fillers):,}, fillers take at most {most} offsets: use translated"
        yield Finding(Level.STOPS, "topics.offsets", what)
    elif fillers:
        size_mb, seconds = (
            sum(fillers) * len(filler_record(FILLER_KEY if are_compacted else None)) / 1e6,
            sum(fillers) / _FILLERS_PER_S,
        )
        # DeleteRecords is refused of a topic with cleanup.policy=compact.
        end = "stay until compaction removes them: consumers pass over them meanwhile" if are_compacted else "are deleted then"
        of = "compacted partition" if are_compacted else "partition"
        what = (
            f"{counted(len(fillers), of)} not beginning at offset 0: fillers take the offsets below first, about "
            f"{size_mb:,.0f} MB and {seconds:,.0f} s, and {end}"
        )
        yield Finding(Level.DOUBT, "topics.offsets", what)
