"""Driver and reading commands: the groups of one cluster, their offsets, and the logs these are offsets of."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from shallow_mirror.broker import BegunOffsets, Cluster, CommittedOffset, ConsumerGroups, ListedGroup, TopicMetadata
from shallow_mirror.broker.admin import Operation, request_permissions
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import gone_topics, missing_topics, reach
from shallow_mirror.broker.net import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, error_name, refusal
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, OutcomeUnknownError, RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition

GROUP_LOG = "__consumer_offsets"
"""The topic in which coordinators log what groups commit."""

Offsets = Mapping[TopicPartition, tuple[int, str]]
"""With their metadata."""

AT_ONCE = 64
"""Groups whose requests are sent before the first response is received."""
_PURPOSES = tuple(f"groups-{number}" for number in range(4))
"""Of the connections to each coordinator, for these: a broker answers one request of a connection after the other, and each
commit is written before it is answered."""


class GroupClient:
    """Connect at the first request. Not thread-safe. Raises RetriableError, ConfigError."""

    def __init__(self, client: ClientConfig, where: str, timeout_s: float | None = None) -> None:
        """`where` names the cluster in errors; `timeout_s` of each request, at most that of a request."""
        self._cluster, self._where = Cluster(client), where
        request_s = client.request_timeout_ms / 1000
        self._timeout_s = request_s if timeout_s is None else min(timeout_s, request_s)
        self._groups = ConsumerGroups(self._cluster, where)

    def close(self) -> None:
        self._cluster.close()

    def cluster_id(self) -> str:
        """Return the id. Raises RetriableError, with what to check, where the cluster does not answer at all."""
        return reach(self._cluster, self._where, self._deadline()).cluster_id

    def listed(self) -> dict[str, ListedGroup]:
        """Return every group. Raises RetriableError while one of their coordinators is missing, as far as the cluster shows that.

        No broker lists the groups of a partition of `__consumer_offsets` that has no leader, or that moves to another one.
        """
        return self._cluster.retrying("listing consumer groups", self._listed, self._deadline())

    def _listed(self, deadline: Deadline) -> dict[str, ListedGroup]:
        leaders = self._group_log_leaders(deadline)
        listed = self._groups.listed(deadline)
        if self._group_log_leaders(deadline) != leaders:
            raise RetriableError("NOT_COORDINATOR", f"{self._where}: coordinators of groups moved while groups were listed")
        return listed

    def _group_log_leaders(self, deadline: Deadline) -> dict[int, int]:
        """Return the leaders of `__consumer_offsets`; none where the cluster does not show that topic."""
        with self._named():
            topic = self._cluster.metadata([GROUP_LOG], deadline).topics.get(GROUP_LOG)
        if topic is None or topic.error_code:
            return {}
        leaders = {number: partition.leader for number, partition in topic.partitions.items()}
        if missing := sorted(number for number, leader in leaders.items() if leader < 0):
            raise RetriableError(
                "COORDINATOR_NOT_AVAILABLE",
                f"{self._where}: {counted(len(missing), 'partition')} of {GROUP_LOG} without a leader ({missing[0]}, for "
                "example): which groups it has cannot be known",
            )
        return leaders

    def reported(self) -> dict[str, ListedGroup]:
        """Return the groups that brokers list now: without those of missing coordinators."""
        return self._groups.listed(self._deadline())

    def may_hide_groups(self) -> bool:
        """Return whether `listed` leaves out groups without Describe permission: who may Describe the cluster sees all."""
        return Operation.DESCRIBE not in (request_permissions(self._cluster, [], self._deadline()).cluster or ())

    def begin_committed(self, groups: Sequence[str], *, waits_for_txns: bool = True) -> dict[str, BegunOffsets]:
        """Send the requests for the offsets of at most AT_ONCE groups, for `finish_committed`."""
        return self._groups.begin_committed(groups, self._deadline(), _PURPOSES, waits_for_txns=waits_for_txns)

    def finish_committed(self, group: str, begun: BegunOffsets) -> tuple[CommittedOffset, ...]:
        return self._groups.committed(group, self._deadline(), begun=begun)

    def committed(self, groups: Iterable[str], *, waits_for_txns: bool = True) -> dict[str, tuple[CommittedOffset, ...]]:
        """Return the offsets of each group. `waits_for_txns`: as `ConsumerGroups.committed`."""
        groups, committed = list(groups), dict[str, tuple[CommittedOffset, ...]]()
        for first in range(0, len(groups), AT_ONCE):
            for group, begun in self.begin_committed(groups[first : first + AT_ONCE], waits_for_txns=waits_for_txns).items():
                committed[group] = self._groups.committed(group, self._deadline(), waits_for_txns=waits_for_txns, begun=begun)
        return committed

    def clients(self, group: str) -> tuple[str, ...]:
        return self._groups.clients(group, self._deadline())

    def commit(self, group: str, offsets: Offsets) -> dict[TopicPartition, str]:
        """Return a sentence for each offset that was refused. Raises OutcomeUnknownError."""
        return self._groups.commit(group, offsets, self._deadline())

    def begin_commits(self) -> None:
        """Do nothing: offsets are committed one by one. To be called before those are read on which commits are based."""

    def commit_together(self, offsets: Mapping[str, Offsets]) -> dict[str, dict[TopicPartition, str]]:
        """Commit offsets of at most AT_ONCE groups. Return a sentence for each that was not committed, by group."""
        begun = self._groups.begin_commits(offsets, self._deadline(), _PURPOSES)
        refused = {}
        for group, of_group in offsets.items():
            try:
                refused[group] = self._groups.commit(group, of_group, self._deadline(), begun=begun[group])
            except OutcomeUnknownError as error:
                refused[group] = dict.fromkeys(of_group, f"{error}: it may have been committed, try again")
        return refused

    def finish_commits(self) -> None:
        """Do nothing: what was committed counts."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics that exist."""
        wanted = sorted(set(topics))
        listed = self._cluster.metadata(wanted, self._deadline()).topics if wanted else {}
        return {name: topic.topic_id for name, topic in listed.items() if topic.error_code == 0}

    def require_absent(self, topics: Collection[str]) -> None:
        """Raise RetriableError if one of these topics exists, which a broker did not list. Topics that are hidden do not count.

        A broker that has just started does not know topics for a moment.
        """
        if not topics:
            return
        missing = missing_topics(self._cluster, sorted(topics), self._deadline())
        now = gone_topics(self._cluster, dict.fromkeys(missing.gone, ""), self._deadline())
        shown = sorted(name for name in topics if name not in missing.hidden and now.get(name) != "")
        if shown:
            what = f"{self._where}: a broker does not know topic {', '.join(shown)} yet: try again"
            raise RetriableError(error_name(UNKNOWN_TOPIC_OR_PARTITION), what)

    def offsets(self, topic_partitions: Collection[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """Return the first or last offsets of logs that exist."""
        return self._offsets(self._existing(topic_partitions), timestamp)

    def known_starts(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets of logs that exist and have a leader."""
        leaders, _ = self._cluster.leaders_and_errors(self._existing(topic_partitions), self._deadline())
        return self._offsets(sorted(leaders), EARLIEST_TIMESTAMP)

    def known_ranges(
        self, topic_partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], dict[TopicPartition, str]]:
        """Return the first and the last offsets of logs that exist, and why those of others of them are not known."""
        existing, level = self._existing(topic_partitions), IsolationLevel.READ_UNCOMMITTED
        if not existing:
            return {}, {}, {}
        ends, errors = self._cluster.latest_offsets(existing, level, self._deadline(), is_patient=False)
        unanswered = {topic_partition: f"{self._where}: {error}" for topic_partition, error in errors.items()}
        return self._offsets(sorted(ends), EARLIEST_TIMESTAMP), ends, unanswered

    def _existing(self, topic_partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        topics = sorted({topic_partition.topic for topic_partition in topic_partitions})
        if not topics:
            return []
        metadata = self._cluster.metadata(topics, self._deadline())
        return sorted(filter(metadata.has, topic_partitions))

    def _offsets(self, existing: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        timestamps = dict.fromkeys(existing, timestamp)
        if not timestamps:
            return {}
        listed = self._cluster.list_offsets(timestamps, IsolationLevel.READ_UNCOMMITTED, self._deadline())
        return {topic_partition: log.offset for topic_partition, log in listed.items()}

    def group_log(self) -> TopicMetadata:
        """Return the metadata of `__consumer_offsets`. Raises ConfigError where the cluster does not show that topic."""
        with self._named():
            topic = self._cluster.metadata([GROUP_LOG], self._deadline()).topics.get(GROUP_LOG)
        if topic is None or topic.error_code:
            code = UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
            raise ConfigError(f"{self._where}: {GROUP_LOG}: {error_name(code)}")
        return topic

    def group_log_ends(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the last stable offsets of the partitions of `__consumer_offsets`, and then their high watermarks.

        Raises ConfigError where it may not be read.
        """
        latest = {TopicPartition(GROUP_LOG, partition): LATEST_TIMESTAMP for partition in self.group_log().partitions}
        with self._named():
            # Where the log is read to its end already, nothing else shows soon that it may not be read.
            if request_permissions(self._cluster, [GROUP_LOG], self._deadline()).missing_on(GROUP_LOG, [Operation.READ]):
                raise ConfigError(f"{self._where}: {refusal(TOPIC_AUTHORIZATION_FAILED, 'Fetch', topic=GROUP_LOG)}")
            stable, visible = (
                {
                    topic_partition: log.offset
                    for topic_partition, log in self._cluster.list_offsets(latest, isolation, self._deadline()).items()
                }
                for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
        return stable, visible

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the cluster in errors."""
        try:
            yield
        except RetriableError as error:
            raise RetriableError(error.error_name, f"{self._where}: {error.detail}") from error

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._timeout_s * 1000, time.monotonic)
