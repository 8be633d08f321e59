"""Everywhere: whether a response without batches proves that a part of a log holds none.

Kafka leaves offsets without a batch in one case only: compaction. A leader whose older segments are in remote storage, and
one that is broken, answer in the same way. So a range counts as empty only if the topic is compacted and the leader has
it on its own disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.read_replicas import ReadSource
from shallow_mirror.broker.fetch.range_progress import RangeProgress
from shallow_mirror.broker.net.error_codes import EMPTY_FETCH, LOG_ENDS_EARLY
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, RetriableError
from shallow_mirror.types import IsolationLevel, OffsetRange, TopicPartition
from shallow_mirror.wire.protocol import FetchedPartition

REMOTE_STORAGE = "REMOTE_STORAGE"
"""Name of the error of a range that the broker has to fetch from its remote storage; else it is EMPTY_FETCH."""

_POLICY = "cleanup.policy"
_REMOTE_STORAGE = ("remote.storage.enable", "confluent.tier.enable", "redpanda.remote.read")
"""Settings of a topic that put older segments elsewhere: Kafka's, and those of vendors' brokers that do it in their own way."""


EMPTY_ANSWERS_AT_END = 2
"""Empty responses of the leader in a row, with a log that reaches beyond the range: then it is checked whether compaction
emptied the range."""

EMPTY_ANSWERS_OF_FOLLOWER = 4
"""Empty responses of a follower in a row: it lags, or nothing is left in the range. Then the leader alone is read."""


@dataclass(frozen=True, slots=True)
class TopicStorage:
    """The properties of a topic's logs by its settings. `refusal`: why they could not be read; "" if they could."""

    is_compacted: bool = False
    is_remote: bool = False
    refusal: str = ""


def topic_storage(cluster: Cluster, topic: str, deadline: Deadline) -> TopicStorage:
    """Ask for the settings of a topic (DescribeConfigs). Raises RetriableError; a refusal is an answer."""
    try:
        settings = cluster.topic_configs([topic], deadline, keys=(_POLICY, *_REMOTE_STORAGE))[topic]
    except ConfigError as error:
        return TopicStorage(refusal=str(error))
    policies = {policy.strip() for policy in settings.get(_POLICY, "").split(",")}
    is_remote = any(settings.get(name, "").lower() == "true" for name in _REMOTE_STORAGE)
    return TopicStorage("compact" in policies, is_remote)


def is_in_remote_storage(cluster: Cluster, topic_partition: TopicPartition, position: int, deadline: Deadline) -> bool | None:
    """Return whether the broker has to fetch an offset from remote storage (KIP-405); None if brokers do not report it.

    While that takes longer than `remote.fetch.max.wait.ms`, the broker answers without batches and without an error.
    Raises RetriableError.
    """
    try:
        return position < cluster.local_log_starts([topic_partition], deadline)[topic_partition]
    except BrokerTooOldError:
        return None


def remote_failure(cluster: Cluster, topic_partition: TopicPartition, position: int, deadline: Deadline) -> str | None:
    """Return why a broker may have failed to read an offset of its remote storage; None if it read its own disk.

    Raises RetriableError.
    """
    is_remote = is_in_remote_storage(cluster, topic_partition, position, deadline)
    if is_remote:
        return "the broker cannot read it from its remote storage"
    if is_remote is None:
        storage = topic_storage(cluster, topic_partition.topic, deadline)
        if storage.is_remote or storage.refusal:
            return "the broker cannot read it, perhaps from remote storage" + (f" ({storage.refusal})" if storage.refusal else "")
    return None


def why_gap_is_unproven(
    cluster: Cluster, topic_partition: TopicPartition, offset_range: OffsetRange, storage: TopicStorage, deadline: Deadline
) -> RetriableError | None:
    """Return why responses without batches do not prove that `offset_range` is empty; None if they do.

    For REMOTE_STORAGE the broker itself waits; EMPTY_FETCH needs an operator. Raises RetriableError.
    """
    is_remote = is_in_remote_storage(cluster, topic_partition, offset_range.start, deadline)
    if is_remote:
        return _unproven(
            REMOTE_STORAGE, topic_partition, offset_range, "they are in remote storage, which the broker still waits for"
        )
    if storage.refusal:
        return _unproven(
            EMPTY_FETCH, topic_partition, offset_range, f"whether compaction removed them is not known: {storage.refusal}"
        )
    if not storage.is_compacted:
        reason = (
            "compaction cannot have removed them: cleanup.policy of the topic does not contain compact. Check the broker's "
            "log, and its remote storage if it has one"
        )
        return _unproven(EMPTY_FETCH, topic_partition, offset_range, reason)
    if is_remote is None and storage.is_remote:
        reason = (
            "they may be in remote storage: a setting of the topic says that it has some, and the broker does not report "
            "where it begins"
        )
        return _unproven(EMPTY_FETCH, topic_partition, offset_range, reason)
    return None


def _unproven(name: str, topic_partition: TopicPartition, offset_range: OffsetRange, reason: str) -> RetriableError:
    return RetriableError(
        name,
        f"the leader of {topic_partition} answers Fetch at offset {offset_range.start} without batches, though its log reaches "
        f"{offset_range.end} and beyond: {reason}",
    )


class EmptyAnswers:
    """Responses without batches, counted by range; for one reader."""

    def __init__(self, cluster: Cluster, isolation: IsolationLevel, deadline: Deadline) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._deadline = deadline
        self._storage: dict[str, TopicStorage] = {}

    def count(self, fetched: FetchedPartition, progress: RangeProgress, source: ReadSource) -> RetriableError | None:
        """Count a response without batches. After several of the leader, the range may end: compaction emptied its rest.

        Return why that is not known, if a retry may find out. Call it only up to the first partition of a response that has a
        batch: brokers ignore limits until then, so an empty partition has no batch within one read of the broker.
        """
        topic_partition = fetched.topic_partition
        if len(fetched.records):
            return None
        # A follower may lag: only the leader's responses prove anything.
        if source.is_follower:
            progress.empty_follower_answers += 1
            if progress.empty_follower_answers >= EMPTY_ANSWERS_OF_FOLLOWER:
                progress.empty_follower_answers = 0
                self._cluster.read_replicas.ask_leader_alone(topic_partition, source.leader)
            return None
        is_committed = self._isolation is IsolationLevel.READ_COMMITTED
        reached = fetched.last_stable_offset if is_committed else fetched.high_watermark
        if progress.range.is_open and reached <= progress.position:
            progress.trouble = None
            return None
        end = reached if progress.range.is_open else progress.range.end
        if reached < end:
            # The log was truncated after the plan was made, or a new leader has not caught up with its high watermark yet.
            detail = f"the log of {topic_partition} ends at {reached}, below the planned end {end}"
            progress.fail(RetriableError(LOG_ENDS_EARLY, detail), self._deadline.clock())
            return None
        if progress.trouble is not None and progress.trouble.error_name != EMPTY_FETCH:
            progress.trouble = None
        progress.empty_answers += 1
        if progress.empty_answers < EMPTY_ANSWERS_AT_END:
            return None
        reason = self._why_unproven(topic_partition, OffsetRange(progress.position, end))
        if reason is None:
            progress.position = end
        # The broker fetches it meanwhile: a partition that takes long is not broken.
        elif reason.error_name == REMOTE_STORAGE:
            progress.remote = reason
        else:
            return reason
        return None

    def _why_unproven(self, topic_partition: TopicPartition, offset_range: OffsetRange) -> RetriableError | None:
        storage = self._storage.get(topic_partition.topic)
        # Read again unless compacted: the setting, or the permission to read it, may be added while this waits.
        if storage is None or not storage.is_compacted:
            storage = self._storage[topic_partition.topic] = topic_storage(self._cluster, topic_partition.topic, self._deadline)
        return why_gap_is_unproven(self._cluster, topic_partition, offset_range, storage, self._deadline)
