"""Everywhere: one Kafka cluster: what its brokers answer, with retries, over connections that last."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster_metadata import (
    ClusterMetadata,
    CoordinatorKind,
    KnownCluster,
    ListedOffset,
    LogDescription,
    PartitionMetadata,
    PathSpeeds,
    ProducerState,
    ResponseErrors,
    TopicMetadata,
)
from shallow_mirror.broker.cluster.config_queries import ConfigQueries
from shallow_mirror.broker.cluster.connection_pool import CONTROL, ConnectionPool
from shallow_mirror.broker.cluster.coordinators import Coordinators
from shallow_mirror.broker.cluster.fetch_pace import FetchPace
from shallow_mirror.broker.cluster.latest_offsets import LatestOffsets
from shallow_mirror.broker.cluster.log_queries import LogQueries
from shallow_mirror.broker.cluster.metadata_cache import MetadataCache
from shallow_mirror.broker.cluster.read_replicas import LANES, FetchPath, ReadReplicas, ReadSource
from shallow_mirror.broker.cluster.retry_loop import RetryLoop
from shallow_mirror.broker.cluster.send_pace import SendWindow
from shallow_mirror.broker.net.begun_call import BEGUN, BegunCall
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.error_codes import UNKNOWN_TOPIC_OR_PARTITION, error_name, may_be_missing
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.types import EpochEnd, IsolationLevel, TopicPartition

NEW_TOPIC_PATIENCE_MS = 1000
"""How long a topic may be unknown before it does not exist: brokers hear of a new one a moment after its creator."""

_T = TypeVar("_T")


class Cluster:
    """One cluster for one thread. Connections belong to the process that made them: after a fork new ones are made.

    Requests here have no effect on the cluster, so they are repeated until the deadline. Raises RetriableError when it is over,
    ConfigError for errors that a person must fix.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        cluster_id: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`cluster_id`: other clusters are not listened to; empty: others than the first that answers."""
        self.config = config
        self._cluster_id = cluster_id
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._reset()

    def _reset(self) -> None:
        """Drop everything that was cached, and the connections, without closing them."""
        self._pid = os.getpid()
        errors = ResponseErrors(self.where)
        self._pool = ConnectionPool(self.config, self._clock)
        self._metadata = MetadataCache(self.config, self._pool, errors, self._clock, self._cluster_id)
        self._retries = RetryLoop(
            self.config.request_timeout_ms, sleep=self._sleep, jitter=self._jitter, before_retry=self._metadata.forget
        )
        self._coordinators = Coordinators(self._pool, self._metadata, errors)
        self._log_queries = LogQueries(self._metadata, errors)
        self._latest_offsets = LatestOffsets(self._metadata, self._log_queries, self._clock)
        self._config_queries = ConfigQueries(self._pool, self._metadata, errors)
        self.read_replicas = ReadReplicas(self.config.metadata_max_age_ms, self._clock)
        self._fetch_paces: dict[FetchPath, FetchPace] = {}
        self._send_windows: dict[int, SendWindow] = {}

    def _check_process(self) -> None:
        """Reset after a fork: two processes that write to one socket would mix their requests."""
        if os.getpid() != self._pid:
            self._reset()

    @property
    def where(self) -> str:
        """Name the cluster in messages: source and target may have topics of the same names."""
        host, port = self.config.bootstrap[0]
        return f"the cluster at {host}:{port}"

    def close(self) -> None:
        self._check_process()
        self._pool.close()
        self._reset()

    # --- retries ---

    def retrying(self, what: str, attempt: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Repeat `attempt` while it raises RetriableError, until the deadline; each try is bounded by the request timeout."""
        self._check_process()
        return self._retries.run(what, attempt, deadline)

    def pause(self, tries: int, deadline: Deadline) -> None:
        """Sleep for the back-off after so many failed tries, not beyond the deadline."""
        self._retries.pause(tries, deadline)

    def back_off_ms(self, tries: int) -> float:
        """Return the pause after so many failed tries, jittered."""
        return self._retries.back_off_ms(tries)

    def wait(self, ms: float, deadline: Deadline) -> None:
        self._retries.wait(ms, deadline)

    def _retrying_of(
        self,
        topic_partitions: Iterable[TopicPartition],
        what: str,
        attempt: Callable[[Deadline], _T],
        deadline: Deadline,
    ) -> _T:
        """Repeat as `retrying`; if one of the topics does not exist, not for longer than a new one may be unknown."""
        names = sorted({topic_partition.topic for topic_partition in topic_partitions})
        patience = deadline.sooner(NEW_TOPIC_PATIENCE_MS)

        def require_topics(error: RetriableError) -> None:
            if not patience.is_over() or not may_be_missing(error.error_name):
                return
            listed = self._metadata.refresh(names, deadline).topics
            missing = [name for name in names if name in listed and listed[name].error_code == UNKNOWN_TOPIC_OR_PARTITION]
            if missing:
                text = f"gave up {what}: {self.where} has no topic {', '.join(missing)}"
                raise RetriableError(error_name(UNKNOWN_TOPIC_OR_PARTITION), text) from error

        self._check_process()
        return self._retries.run(what, attempt, deadline, require_topics)

    # --- connections ---

    def connection(self, node_id: int, purpose: str, deadline: Deadline) -> Connection:
        """Return the connection to a broker for one purpose, made when needed. Raises RetriableError if that fails."""
        self._check_process()
        return self._metadata.connection(node_id, purpose, deadline)

    def any_broker(self, deadline: Deadline) -> Connection:
        """Return a connection to a listed broker or a bootstrap server. Raises the last error when none can be reached."""
        self._check_process()
        return self._metadata.any_broker(deadline)

    def controller(self, deadline: Deadline) -> Connection:
        """Return a connection to the node that takes administrative requests: `forget_metadata` looks for it again."""
        self._check_process()
        return self._metadata.controller(deadline)

    def coordinator(self, kind: CoordinatorKind, key: str, deadline: Deadline, purpose: str = CONTROL) -> Connection:
        """Return a connection to the coordinator of a group or transactional id; asking also creates its internal topic."""
        self._check_process()
        return self._coordinators.connection(kind, key, deadline, purpose)

    def find_coordinators(self, kind: CoordinatorKind, keys: Iterable[str], deadline: Deadline) -> None:
        """Find the coordinators of keys that are going to be asked, in as few round trips as possible. Raises RetriableError."""
        keys = list(keys)
        self.retrying("finding coordinators", lambda attempt: self._coordinators.find(kind, keys, attempt), deadline)

    def known_coordinator(self, kind: CoordinatorKind, key: str) -> int | None:
        """Return the node id of a coordinator that was found before."""
        return self._coordinators.known(kind, key)

    def learn_coordinator(self, kind: CoordinatorKind, key: str, node_id: int) -> None:
        """Note a coordinator that a broker named by its own, which spares a FindCoordinator."""
        self._coordinators.learn(kind, key, node_id)

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.forget(kind, key)

    # --- metadata ---

    def cluster_id(self, deadline: Deadline) -> str:
        return self.metadata([], deadline).cluster_id

    @property
    def known_id(self) -> str:
        """Return the id of the cluster as far as it is known without a request; empty otherwise."""
        return self._metadata.cluster_id

    @property
    def has_met_another(self) -> bool:
        """Return whether an address has led to another cluster, which was not listened to: it may have replaced this one."""
        return self._metadata.has_met_another

    def forget_metadata(self) -> None:
        self._metadata.forget()

    def metadata(self, topics: Sequence[str] | None, deadline: Deadline) -> ClusterMetadata:
        """Return metadata of topics; None: of all. Never creates a topic. A topic that does not exist comes with its error code.

        All topics, and those of the same object `topics` if it is a tuple, are the same object again as long as nothing of
        them has changed.
        """
        return self.retrying("asking for metadata", lambda attempt: self._metadata.refresh(topics, attempt), deadline)

    def metadata_of(self, node_id: int, topics: Sequence[str], deadline: Deadline) -> ClusterMetadata:
        """Return one broker's metadata of topics. Nothing is repeated or kept: raises RetriableError."""
        self._check_process()
        return self._metadata.ask(node_id, topics, deadline.sooner(self.config.request_timeout_ms))

    def begin_metadata(
        self, topics: Sequence[str], deadline: Deadline, node_id: int | None = None, purpose: str = BEGUN
    ) -> BegunCall[ClusterMetadata]:
        """Request metadata of topics without waiting for it. `node_id`: whose; None: any. `purpose`: of the connection."""
        self._check_process()
        return self._metadata.begin(topics, deadline, node_id, purpose)

    def known(
        self, metadata: ClusterMetadata, transactional_ids: Iterable[str], speeds: PathSpeeds, *, is_new: bool
    ) -> KnownCluster:
        """Return knowledge for tasks: `metadata`, and the coordinators of these ids as far as this process knows them.

        `speeds`: of the paths from other tasks.
        """
        keys = [(kind, name) for name in transactional_ids for kind in CoordinatorKind]
        coordinators = {key: node_id for key in keys if (node_id := self._coordinators.known(*key)) is not None}
        return KnownCluster(metadata, coordinators, speeds, is_new)

    def learn(self, known: KnownCluster) -> None:
        """Take the driver's knowledge of a moment ago, or, if this process knows nothing yet, older knowledge."""
        self._check_process()
        if self._metadata.cluster_id and known.metadata.cluster_id not in ("", self._metadata.cluster_id):
            self._cluster_id = known.metadata.cluster_id
            self.close()  # another cluster has the addresses now, and the driver has checked which one it is
        if not known.is_new and self._pool.has_brokers:
            return
        self._metadata.learn(known.metadata)
        for (kind, key), node_id in known.coordinators.items():
            self._coordinators.learn(kind, key, node_id)
        for node_id, send_speed in known.speeds.sending.items():
            self.send_window(node_id).learn(send_speed)
        for node_id, fetch_speed in known.speeds.fetching.items():
            for lane in LANES:
                self.fetch_pace(FetchPath(node_id, lane=lane)).learn(fetch_speed)

    def path_speeds(self) -> PathSpeeds:
        """Return this process's measurements of the paths to the brokers."""
        fetching = {path.node_id: pace.speed() for path, pace in self._fetch_paces.items() if path == FetchPath(path.node_id)}
        sending = {node_id: window.speed() for node_id, window in self._send_windows.items()}
        return PathSpeeds(
            {node_id: speed for node_id, speed in sending.items() if speed is not None},
            {node_id: speed for node_id, speed in fetching.items() if speed is not None},
        )

    def open_at_once(self, wanted: Iterable[tuple[int, str]], deadline: Deadline) -> None:
        """Open the connections that are missing, by node id and purpose, side by side. Raises ConfigError."""
        self._check_process()
        self._pool.open_at_once(wanted, deadline)

    def require_partitions(self, topic_partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Raise ConfigError that names every topic-partition which does not exist, or RetriableError. Creates nothing."""
        required = sorted(set(topic_partitions))
        topics = sorted({topic_partition.topic for topic_partition in required})
        patience, tries = deadline.sooner(NEW_TOPIC_PATIENCE_MS), 0
        while problems := _missing_partitions(required, self.metadata(topics, deadline)):
            if patience.is_over():
                raise ConfigError(problems)
            self.pause(tries, patience)
            tries += 1

    def known_topics(self, names: set[str], deadline: Deadline) -> dict[str, TopicMetadata]:
        """Return cached metadata of those of the topics that exist. Raises as `leaders`."""
        self._check_process()
        return self._metadata.known_topics(names, deadline)

    def leaders(self, topic_partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, PartitionMetadata]:
        """Return the leader of each topic-partition, cached.

        Raises RetriableError if one has none now, ConfigError if the permission to describe a topic is missing.
        """
        self._check_process()
        return self._metadata.leaders(topic_partitions, deadline)

    def leaders_and_errors(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> tuple[dict[TopicPartition, PartitionMetadata], dict[TopicPartition, RetriableError]]:
        """Return as `leaders`, and an error for each topic-partition that has no leader now.

        Raises RetriableError if no broker answers, ConfigError if the permission to describe a topic is missing.
        """
        self._check_process()
        return self._metadata.leaders_and_errors(topic_partitions, deadline)

    def read_sources_and_errors(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> tuple[dict[TopicPartition, ReadSource], dict[TopicPartition, RetriableError]]:
        """Return the replica that each topic-partition is read from: its leader, or the one it named.

        Errors are as of `leaders_and_errors`.
        """
        leaders, leaderless = self.leaders_and_errors(topic_partitions, deadline)
        return {key: self.read_replicas.source_of(key, leader) for key, leader in leaders.items()}, leaderless

    def fetch_pace(self, path: FetchPath) -> FetchPace:
        """Return how fast responses of a broker arrive, as readers of this cluster have seen so far."""
        if path not in self._fetch_paces:
            self._fetch_paces[path] = FetchPace(self.config.request_timeout_ms, self._clock)
        return self._fetch_paces[path]

    def send_window(self, node_id: int) -> SendWindow:
        """Return the window of the path to a leader, as measured by transactions of this cluster so far."""
        if node_id not in self._send_windows:
            self._send_windows[node_id] = SendWindow(self._clock)
        return self._send_windows[node_id]

    # --- logs ---

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel, deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        """Return offsets: -1 latest (the last stable offset under read_committed), -2 earliest, else ms: first record since."""
        return self._retrying_of(
            timestamps,
            "listing offsets",
            lambda attempt: self._log_queries.list_offsets(timestamps, isolation, attempt),
            deadline,
        )

    def latest_offsets(
        self,
        topic_partitions: Sequence[TopicPartition],
        isolation: IsolationLevel,
        deadline: Deadline,
        *,
        is_patient: bool = True,
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MirrorError]]:
        """Return `list_offsets` of -1 of the topic-partitions whose leaders answer, and an error for each of the others.

        With the same object `topic_partitions` again, the request is not made again. With `is_patient`, if no leader answered,
        all are asked again until the deadline; then it raises RetriableError.
        """
        self._check_process()
        deadline = deadline.sooner(self.config.request_timeout_ms)
        offsets, errors = self._latest_offsets.ask(topic_partitions, isolation, deadline)
        if topic_partitions and not offsets and is_patient:
            # The caller could do nothing with errors alone: ask again until the deadline.
            listed = self.list_offsets(dict.fromkeys(topic_partitions, -1), isolation, deadline)
            return {key: latest.offset for key, latest in listed.items()}, {}
        return offsets, errors

    def begin_latest_offsets(
        self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> list[BegunCall[dict[TopicPartition, int]]]:
        """Ask each leader for latest offsets without waiting for the answers. Raises RetriableError if no broker is known."""
        self._check_process()
        return self._latest_offsets.begin(topic_partitions, isolation, deadline.sooner(self.config.request_timeout_ms))

    def local_log_starts(self, topic_partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """Return the start of the part of each log that is on its broker's own disk; older records are in remote storage.

        KIP-405. Raises BrokerTooOldError before Kafka 3.5, and with vendors' brokers that have remote storage of their own and
        speak older versions of ListOffsets.
        """
        keys = list(topic_partitions)
        return self._retrying_of(
            keys, "listing local offsets", lambda attempt: self._log_queries.local_log_starts(keys, attempt), deadline
        )

    def epoch_ends(self, leader_epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd]:
        """Return the end of a leader epoch of each log (KIP-320); of the next lower epoch if the log has no record of it."""
        return self._retrying_of(
            leader_epochs,
            "asking for leader epochs",
            lambda attempt: self._log_queries.epoch_ends(leader_epochs, attempt),
            deadline,
        )

    def describe_producers(
        self, topic_partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Return the producers that the leaders remember."""
        return self._retrying_of(
            topic_partitions,
            "describing producers",
            lambda attempt: self._log_queries.describe_producers(topic_partitions, attempt),
            deadline,
        )

    def describe_logs(
        self, topic_partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, LogDescription]:
        """Return start, end and producers of logs, in the time of one request. Nothing is repeated: raises RetriableError."""
        self._check_process()
        return self._log_queries.describe_logs(topic_partitions, deadline.sooner(self.config.request_timeout_ms))

    # --- settings ---

    def topic_configs(
        self, names: Sequence[str], deadline: Deadline, *, keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Return settings by topic, all or those of `keys`; a setting without a value is left out."""
        return self._retrying_of(
            [TopicPartition(name, 0) for name in names],
            "reading topic settings",
            lambda attempt: self._config_queries.topic_configs(names, keys, attempt),
            deadline,
        )

    def broker_configs(self, node_id: int, deadline: Deadline) -> dict[str, str]:
        """Return the settings of a broker, defaults included; a setting without a value, or a secret one, is left out."""
        return self.retrying(
            "reading broker settings", lambda attempt: self._config_queries.broker_configs(node_id, attempt), deadline
        )


def _missing_partitions(topic_partitions: Sequence[TopicPartition], metadata: ClusterMetadata) -> list[str]:
    """Return a sentence for each that does not exist, one per topic that does not exist at all."""
    problems: dict[str, None] = {}
    for topic_partition in topic_partitions:
        topic = metadata.topics.get(topic_partition.topic)
        if topic is None or (topic.error_code and not topic.partitions):
            reason = error_name(topic.error_code) if topic is not None else "no answer for it"
            problems[f"topic {topic_partition.topic}: {reason}; create it, or correct the name"] = None
        elif topic_partition.partition not in topic.partitions:
            count = len(topic.partitions)
            problems[f"{topic_partition}: the topic has {counted(count, 'partition')}, 0 to {count - 1}"] = None
    return list(problems)
