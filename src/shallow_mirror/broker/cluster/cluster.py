"""Everywhere: one Kafka cluster: its brokers, topics, leaders and coordinators, and a connection per broker and purpose."""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.connection_factory import ConnectionOpener
from shallow_mirror.broker.cluster.cluster_metadata import (
    ClusterMetadata,
    CoordinatorKind,
    ListedOffset,
    PartitionMetadata,
    ProducerState,
    TopicMetadata,
    parse_topic_metadata,
)
from shallow_mirror.broker.cluster.latest_offsets import LatestQuestion
from shallow_mirror.broker.cluster.read_replicas import ReadReplicas, ReadSource
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.error_codes import TOPIC_AUTHORIZATION_FAILED, ErrorClass, error_class, error_name, refusal
from shallow_mirror.broker.net.requests import LastAnswer, call, request_class
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError, TopicAccessError
from shallow_mirror.plurals import counted
from shallow_mirror.types import EpochEnd, IsolationLevel, TopicPartition

BACK_OFF_MS = (5, 10, 20, 50, 100, 200, 500, 1000)
"""Pauses between tries, jittered by half; the last one repeats until the deadline."""

NEW_TOPIC_PATIENCE_MS = 1000
"""How long a topic may be unknown before it does not exist: brokers hear of a new one a moment after its creator."""

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
CONTROL = "control"
_EARLIEST_LOCAL = -4

_SLOW_FAILURE_S = 0.5

_LEAST_SHARE_MS = 1_000.0
"""A leader that is asked how far its logs reach has at least so long, and half of the time that is left."""

_K = TypeVar("_K")
_T = TypeVar("_T")


@dataclass(slots=True)
class _Listing:
    """Metadata of all topics, or of those of one tuple, as it was answered last."""

    topics: tuple[str, ...] | None
    metadata: ClusterMetadata = field(default_factory=lambda: ClusterMetadata("", {}, {}))
    last: LastAnswer = field(default_factory=LastAnswer)


@dataclass(frozen=True, slots=True)
class _Latest:
    """What was asked of the leaders last."""

    places: Sequence[TopicPartition]
    isolation: IsolationLevel
    questions: Mapping[int, LatestQuestion]
    leaderless: Mapping[TopicPartition, RetriableError]

    def is_for(self, places: Sequence[TopicPartition], isolation: IsolationLevel) -> bool:
        return self.places is places and self.isolation is isolation


class Cluster:
    """Not thread-safe. Connections belong to the process that made them: after a fork they are left alone.

    Requests here have no effect on the cluster, so they are repeated until the deadline. Raises RetriableError when it is over,
    ConfigError for what a person must change.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.config = config
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._pid = os.getpid()
        self._forget_everything()

    def _forget_everything(self) -> None:
        self._opener = ConnectionOpener(self.config, clock=self._clock)
        self._connections: dict[tuple[object, str], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._unreachable_at: dict[tuple[str, int], float] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._topics_at = 0.0
        self._all, self._named = _Listing(None), _Listing(())
        self._latest: _Latest | None = None
        self._silent: dict[int, tuple[float, RetriableError]] = {}
        """Leaders that are not asked how far their logs reach until a time on the clock, and why."""
        self.read_replicas = ReadReplicas(self.config.metadata_max_age_ms, self._clock)

    def _own_process(self) -> None:
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._forget_everything()

    @property
    def where(self) -> str:
        """For people, in messages: source and target may have topics of the same names."""
        host, port = self.config.bootstrap[0]
        return f"the cluster at {host}:{port}"

    def close(self) -> None:
        self._own_process()
        for connection in self._connections.values():
            connection.close()
        self._forget_everything()

    def connection(self, node_id: int, purpose: str, deadline: Deadline) -> Connection:
        """The connection to a broker for one purpose, made when needed. Raises RetriableError when it cannot be reached."""
        self._own_process()
        if node_id not in self._brokers:
            self._refresh(None, deadline)
        if node_id not in self._brokers:
            raise RetriableError("BROKER_NOT_AVAILABLE", f"the cluster lists no broker {node_id}")
        return self._connect(node_id, self._brokers[node_id], purpose, deadline)

    def _connect(self, key: object, address: tuple[str, int], purpose: str, deadline: Deadline) -> Connection:
        known = self._connections.get((key, purpose))
        if known is not None and not known.is_closed:
            return known
        connection = self._opener.open(address, deadline.sooner(self.config.connection_setup_timeout_ms))
        self._connections[key, purpose] = connection
        return connection

    def any_broker(self, deadline: Deadline) -> Connection:
        """A known broker or a bootstrap one. Raises the last error when none can be reached until the deadline.

        Those that could not be reached lately come last: one that accepts connections and is silent takes all the time
        there is, and would be the only one that is ever asked.
        """
        self._own_process()
        known = [*self._brokers.items(), *((address, address) for address in self.config.bootstrap)]
        last: RetriableError | None = None
        for key, address in sorted(known, key=lambda one: self._unreachable_at.get(one[1], 0.0)):
            if last is not None and deadline.is_over():
                break
            try:
                connection = self._connect(key, address, CONTROL, deadline)
            except RetriableError as error:
                self._unreachable_at[address] = self._clock()
                last = error
            else:
                self._unreachable_at.pop(address, None)
                return connection
        raise last if last is not None else RetriableError("NETWORK_EXCEPTION", "no bootstrap broker is configured")

    def retrying(self, what: str, attempt: Callable[[Deadline], _T], deadline: Deadline) -> _T:
        """Repeat `attempt` while it raises RetriableError, until the deadline; each try is bounded by the request timeout."""
        tries = 0
        while True:
            try:
                return attempt(deadline.sooner(self.config.request_timeout_ms))
            except RetriableError as error:
                if type(error) is not RetriableError or deadline.is_over():
                    raise
                self.forget_metadata()
                self.pause(tries, deadline)
                tries += 1
                if deadline.is_over():
                    raise RetriableError(error.error_name, f"gave up {what}: {error.detail}") from error

    def pause(self, tries: int, deadline: Deadline) -> None:
        self.wait(self.back_off_ms(tries), deadline)

    def back_off_ms(self, tries: int) -> float:
        """Return the pause after so many failed tries, jittered."""
        return BACK_OFF_MS[min(tries, len(BACK_OFF_MS) - 1)] * (0.5 + self._jitter() / 2)

    def wait(self, ms: float, deadline: Deadline) -> None:
        self._sleep(min(ms, deadline.remaining_ms()) / 1000)

    def cluster_id(self, deadline: Deadline) -> str:
        return self.metadata([], deadline).cluster_id

    def forget_metadata(self) -> None:
        self._latest = None
        self._topics.clear()
        self._topics_at = 0.0

    def metadata(self, topics: Sequence[str] | None, deadline: Deadline) -> ClusterMetadata:
        """None: all topics. Never creates a topic. A topic that does not exist comes with its error code.

        All topics, and those of the same object `topics` if it is a tuple, are the same object again as long as nothing of
        them has changed.
        """
        self._own_process()
        return self.retrying("asking for metadata", lambda one: self._refresh(topics, one), deadline)

    def require_partitions(self, places: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Raises ConfigError that names every topic-partition which does not exist, and RetriableError. Creates nothing."""
        wanted = sorted(set(places))
        patience, tries = deadline.sooner(NEW_TOPIC_PATIENCE_MS), 0
        while missing := _missing(wanted, self.metadata(sorted({one.topic for one in wanted}), deadline)):
            if patience.is_over():
                raise ConfigError(missing)
            self.pause(tries, patience)
            tries += 1

    def leaders(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, PartitionMetadata]:
        """Leader of each topic-partition, cached. Raises RetriableError where one has none now, ConfigError where we may not
        ask.
        """
        found, leaderless = self.leaders_there_are(places, deadline)
        for error in leaderless.values():
            raise error
        return found

    def leaders_there_are(
        self, places: Iterable[TopicPartition], deadline: Deadline
    ) -> tuple[dict[TopicPartition, PartitionMetadata], dict[TopicPartition, RetriableError]]:
        """Return the leaders, cached, and an error for each topic-partition that has none now.

        What is known is forgotten where one has none. Raises RetriableError where no broker answers, ConfigError where we may not
        ask.
        """
        self._own_process()
        places = list(places)
        if self._clock() - self._topics_at > self.config.metadata_max_age_ms / 1000:
            self.forget_metadata()
        wanted = {place.topic for place in places}
        if not wanted <= self._topics.keys():
            refreshed = self._refresh(sorted(wanted | self._topics.keys()), deadline)
            for name in sorted(wanted & refreshed.topics.keys()):
                if error_class(refreshed.topics[name].error_code) is ErrorClass.DEFINITE:
                    self._raise_for(refreshed.topics[name].error_code, f"describing topic {name}", "Metadata", topic=name)
        found: dict[TopicPartition, PartitionMetadata] = {}
        leaderless: dict[TopicPartition, RetriableError] = {}
        for place in places:
            topic = self._topics.get(place.topic)
            partition = None if topic is None else topic.partitions.get(place.partition)
            if partition is None or partition.leader < 0:
                leaderless[place] = RetriableError("LEADER_NOT_AVAILABLE", f"{place} has no leader")
            else:
                found[place] = partition
        if leaderless:
            self.forget_metadata()
        return found, leaderless

    def read_sources_there_are(
        self, places: Iterable[TopicPartition], deadline: Deadline
    ) -> tuple[dict[TopicPartition, ReadSource], dict[TopicPartition, RetriableError]]:
        """Return whom to ask for the records of each topic-partition: its leader, or the replica that it named; and an error for
        each that has no leader now. Raises as `leaders_there_are`."""
        leaders, leaderless = self.leaders_there_are(places, deadline)
        return {place: self.read_replicas.source_of(place, leader) for place, leader in leaders.items()}, leaderless

    def read_sources(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, ReadSource]:
        """Return whom to ask for the records of each topic-partition. Raises as `leaders`."""
        leaders = self.leaders(places, deadline)
        return {place: self.read_replicas.source_of(place, leader) for place, leader in leaders.items()}

    def _refresh(self, topics: Sequence[str] | None, deadline: Deadline) -> ClusterMetadata:
        deadline = deadline.sooner(self.config.request_timeout_ms)
        entry, listing = request_class("Metadata").MetadataRequestTopic, self._listing_of(topics)
        known = None if listing is None else listing.last.answer
        answer = call(
            self.any_broker(deadline),
            "Metadata",
            deadline,
            last=None if listing is None else listing.last,
            topics=None if topics is None else [entry(topic_id=uuid.UUID(int=0), name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        self._brokers = {one.node_id: (one.host, one.port) for one in answer.brokers}
        if listing is None or known is None or answer is not known:
            found = {one.name: parse_topic_metadata(one) for one in answer.topics}
            listed = ClusterMetadata(answer.cluster_id or "", dict(self._brokers), found)
            self._latest = None
        else:
            listed = listing.metadata
        if listing is not None:
            listing.metadata = listed
        self._topics.update({name: topic for name, topic in listed.topics.items() if topic.error_code == 0})
        self._topics_at = self._clock()
        return listed

    def _listing_of(self, topics: Sequence[str] | None) -> _Listing | None:
        if topics is None:
            return self._all
        if not isinstance(topics, tuple):
            return None
        if self._named.topics is not topics:
            self._named = _Listing(topics)
        return self._named

    def coordinator(self, kind: CoordinatorKind, key: str, deadline: Deadline) -> Connection:
        """Connection to the coordinator of a group or transactional id; asking also creates its internal topic."""
        self._own_process()
        if (kind, key) not in self._coordinators:
            answer = call(self.any_broker(deadline), "FindCoordinator", deadline, key=key, key_type=kind.value)
            self._raise_for(answer.error_code, f"finding the coordinator of {key}", "FindCoordinator", key=key)
            self._brokers[answer.node_id] = (answer.host, answer.port)
            self._coordinators[kind, key] = answer.node_id
        try:
            return self.connection(self._coordinators[kind, key], CONTROL, deadline)
        except RetriableError:
            self.forget_coordinator(kind, key)
            raise

    def learn_coordinator(self, kind: CoordinatorKind, key: str, node_id: int) -> None:
        """From a broker that says so itself: nobody need be asked then."""
        self._coordinators[kind, key] = node_id

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel, deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        """-1 latest (the last stable offset under read_committed), -2 earliest, else ms: first record at or after."""
        self._own_process()
        return self.retrying(
            "listing offsets", lambda one: self._list_offsets("ListOffsets", timestamps, isolation, one), deadline
        )

    def latest_offsets(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MirrorError]]:
        """Return `list_offsets` of -1 of the topic-partitions whose leaders answer, and an error for each of the others.

        Asked again with the same object `places`, the request is not made anew. A leader that takes long to fail
        (`_SLOW_FAILURE_S`) is not asked again for twice as long, so that it holds up the others a third of the time at most.
        Raises RetriableError where nothing was answered.
        """
        self._own_process()
        deadline = deadline.sooner(self.config.request_timeout_ms)
        found, wrong = self._ask_latest(places, isolation, deadline)
        if any(type(error) is RetriableError for error in wrong.values()):  # most often it only moved to another leader
            self.forget_metadata()
            found, wrong = self._ask_latest(places, isolation, deadline)
        if wrong:
            self.forget_metadata()
        if places and not found:  # there is nothing else to go on with: the long way tries until the deadline
            listed = self.list_offsets(dict.fromkeys(places, -1), isolation, deadline)
            return {place: one.offset for place, one in listed.items()}, {}
        return found, wrong

    def _ask_latest(
        self, places: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MirrorError]]:
        if self._latest is None or not self._latest.is_for(places, isolation):
            leaders, leaderless = self.leaders_there_are(places, deadline)
            asked = {node_id: LatestQuestion.of(members, isolation) for node_id, members in _grouped(leaders).items()}
            self._latest = _Latest(places, isolation, asked, leaderless)
        found: dict[TopicPartition, int] = {}
        wrong: dict[TopicPartition, MirrorError] = dict(self._latest.leaderless)
        for node_id, question in self._latest.questions.items():
            try:
                self._refuse_silent(node_id)
                found.update(self._answer_of(node_id, question, isolation, deadline, wrong))
            except RetriableError as error:
                wrong.update(dict.fromkeys(question.members(), error))
        return found, wrong

    def _refuse_silent(self, node_id: int) -> None:
        until, error = self._silent.get(node_id, (0.0, None))
        if error is not None and self._clock() < until:
            raise error

    def _answer_of(
        self,
        node_id: int,
        question: LatestQuestion,
        isolation: IsolationLevel,
        deadline: Deadline,
        wrong: dict[TopicPartition, MirrorError],
    ) -> dict[TopicPartition, int]:
        """What one leader says; errors of single topic-partitions go to `wrong`. It may use half of the time that is left."""
        deadline, began = deadline.sooner(max(_LEAST_SHARE_MS, deadline.remaining_ms() / 2)), self._clock()
        try:
            connection = self.connection(node_id, CONTROL, deadline)
            answer = question.ask(connection, deadline)
            if answer is not None:
                return answer
            members, timestamps = question.partitions(), dict.fromkeys(question.members(), -1)
            listed = self._offsets_of(node_id, "ListOffsets", members, timestamps, isolation, deadline)
        except RetriableError as error:
            now = self._clock()
            if now - began >= _SLOW_FAILURE_S:
                self._silent[node_id] = (now + 2 * (now - began), error)
            raise
        self._silent.pop(node_id, None)
        found = {place: one.offset for place, one in listed.items() if isinstance(one, ListedOffset)}
        wrong.update({place: one for place, one in listed.items() if isinstance(one, MirrorError)})
        left_out = RetriableError("PROTOCOL", "the answer to ListOffsets leaves it out")
        wrong.update({place: left_out for place in timestamps if place not in listed})
        return found

    def local_log_starts(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """Where that part of each log begins which is on its broker's own disk; what is older is in remote storage (KIP-405).

        Raises BrokerTooOldError where the question is not known: before Kafka 3.5, and with vendors' brokers that have remote
        storage of their own and speak older versions of ListOffsets.
        """
        self._own_process()
        asked, level = dict.fromkeys(places, _EARLIEST_LOCAL), IsolationLevel.READ_UNCOMMITTED
        listed = self.retrying(
            "listing local offsets", lambda one: self._list_offsets("ListLocalOffsets", asked, level, one), deadline
        )
        return {place: found.offset for place, found in listed.items()}

    def _list_offsets(
        self, api: str, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel, deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        found: dict[TopicPartition, ListedOffset] = {}
        for node_id, members in self._by_leader(timestamps, deadline).items():
            for place, one in self._offsets_of(node_id, api, members, timestamps, isolation, deadline).items():
                if isinstance(one, MirrorError):
                    raise one
                found[place] = one
        return _all_of(timestamps, found, api)

    def _offsets_of(
        self,
        node_id: int,
        api: str,
        members: Mapping[str, Sequence[int]],
        timestamps: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        deadline: Deadline,
    ) -> dict[TopicPartition, ListedOffset | MirrorError]:
        """What one leader answers, errors of single topic-partitions as values. Raises RetriableError."""
        request = request_class(api)
        topic, partition = request.ListOffsetsTopic, request.ListOffsetsTopic.ListOffsetsPartition
        answer = call(
            self.connection(node_id, CONTROL, deadline),
            api,
            deadline,
            replica_id=-1,
            isolation_level=1 if isolation is IsolationLevel.READ_COMMITTED else 0,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        partition(partition_index=one, current_leader_epoch=-1, timestamp=timestamps[TopicPartition(name, one)])
                        for one in partitions
                    ],
                )
                for name, partitions in members.items()
            ],
        )
        found: dict[TopicPartition, ListedOffset | MirrorError] = {}
        for answered in answer.topics:
            for one in answered.partitions:
                place = TopicPartition(answered.name, one.partition_index)
                error = self._error_of(one.error_code, f"listing the offset of {place}", "ListOffsets", topic=place.topic)
                found[place] = error or ListedOffset(one.offset, one.timestamp, one.leader_epoch)
        return found

    def epoch_ends(self, leader_epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd]:
        """How far a leader epoch of each log reaches (KIP-320); of the next lower epoch where the log has no record of it."""
        self._own_process()
        return self.retrying("asking for leader epochs", lambda one: self._epoch_ends(leader_epochs, one), deadline)

    def _epoch_ends(self, leader_epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd]:
        topic = request_class("OffsetForLeaderEpoch").OffsetForLeaderTopic
        found: dict[TopicPartition, EpochEnd] = {}
        for node_id, members in self._by_leader(leader_epochs, deadline).items():
            asked = [
                topic(
                    topic=name,
                    partitions=[
                        topic.OffsetForLeaderPartition(
                            partition=one, current_leader_epoch=-1, leader_epoch=leader_epochs[TopicPartition(name, one)]
                        )
                        for one in partitions
                    ],
                )
                for name, partitions in members.items()
            ]
            connection = self.connection(node_id, CONTROL, deadline)
            answer = call(connection, "OffsetForLeaderEpoch", deadline, replica_id=-1, topics=asked)
            for answered in answer.topics:
                for one in answered.partitions:
                    place = TopicPartition(answered.topic, one.partition)
                    what = f"asking for the leader epochs of {place}"
                    self._raise_for(one.error_code, what, "OffsetForLeaderEpoch", topic=place.topic)
                    found[place] = EpochEnd(one.leader_epoch, one.end_offset)
        return _all_of(leader_epochs, found, "OffsetForLeaderEpoch")

    def describe_producers(
        self, places: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Producers that the leaders remember."""
        self._own_process()
        return self.retrying("describing producers", lambda one: self._describe_producers(places, one), deadline)

    def _describe_producers(
        self, places: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        topic = request_class("DescribeProducers").TopicRequest
        found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        for node_id, members in self._by_leader(places, deadline).items():
            answer = call(
                self.connection(node_id, CONTROL, deadline),
                "DescribeProducers",
                deadline,
                topics=[topic(name=name, partition_indexes=partitions) for name, partitions in members.items()],
            )
            for answered in answer.topics:
                for one in answered.partitions:
                    place = TopicPartition(answered.name, one.partition_index)
                    what = f"describing the producers of {place}"
                    self._raise_for(one.error_code, what, "DescribeProducers", topic=place.topic)
                    found[place] = tuple(
                        ProducerState(
                            state.producer_id,
                            state.producer_epoch,
                            state.current_txn_start_offset,
                            state.last_timestamp,
                            state.coordinator_epoch,
                        )
                        for state in one.active_producers
                    )
        return _all_of(places, found, "DescribeProducers")

    def topic_configs(
        self, names: Sequence[str], deadline: Deadline, *, keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Settings by topic, all or those of `keys`; a setting without a value is left out."""
        self._own_process()
        return self.retrying(
            "reading topic settings",
            lambda one: self._configs(self.any_broker(one), _TOPIC_RESOURCE, names, "topic", one, keys),
            deadline,
        )

    def broker_configs(self, node_id: int, deadline: Deadline) -> dict[str, str]:
        """Settings of one broker, defaults included; a setting without a value, or a secret one, is left out."""
        self._own_process()
        name = str(node_id)
        found = self.retrying(
            "reading broker settings",
            lambda one: self._configs(self.connection(node_id, CONTROL, one), _BROKER_RESOURCE, [name], "broker", one),
            deadline,
        )
        return found[name]

    def _configs(
        self,
        connection: Connection,
        resource_type: int,
        names: Sequence[str],
        kind: str,
        deadline: Deadline,
        keys: Sequence[str] | None = None,
    ) -> dict[str, dict[str, str]]:
        resource = request_class("DescribeConfigs").DescribeConfigsResource
        answer = call(
            connection,
            "DescribeConfigs",
            deadline,
            resources=[
                resource(resource_type=resource_type, resource_name=name, configuration_keys=None if keys is None else list(keys))
                for name in names
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        for one in answer.results:
            what = f"reading the settings of {kind} {one.resource_name}"
            self._raise_for(one.error_code, what, "DescribeConfigs", topic=one.resource_name)
        found = {
            one.resource_name: {setting.name: setting.value for setting in one.configs if setting.value is not None}
            for one in answer.results
        }
        return _all_of(names, found, "DescribeConfigs")

    def _by_leader(self, places: Iterable[TopicPartition], deadline: Deadline) -> dict[int, dict[str, list[int]]]:
        return _grouped(self.leaders(places, deadline))

    def _raise_for(self, code: int, what: str, api: str, *, topic: str = "", key: str = "") -> None:
        """RetriableError for what may pass, ConfigError for what a person must change; nothing for 0."""
        error = self._error_of(code, what, api, topic=topic, key=key)
        if error is not None:
            raise error

    def _error_of(self, code: int, what: str, api: str, *, topic: str = "", key: str = "") -> MirrorError | None:
        if code == 0:
            return None
        if error_class(code) is not ErrorClass.DEFINITE:
            return RetriableError(error_name(code), what)
        text = f"{what}: {self.where} answered {refusal(code, api, topic=topic, key=key)}"
        return TopicAccessError(text, [topic]) if code == TOPIC_AUTHORIZATION_FAILED else ConfigError(text)


def _grouped(leaders: Mapping[TopicPartition, PartitionMetadata]) -> dict[int, dict[str, list[int]]]:
    """Partitions by topic, by leader."""
    grouped: dict[int, dict[str, list[int]]] = {}
    for place, partition in leaders.items():
        grouped.setdefault(partition.leader, {}).setdefault(place.topic, []).append(place.partition)
    return grouped


def _missing(places: Sequence[TopicPartition], metadata: ClusterMetadata) -> list[str]:
    """A sentence for each that does not exist, one per topic that does not exist at all."""
    sentences: dict[str, None] = {}
    for place in places:
        topic = metadata.topics.get(place.topic)
        if topic is None or (topic.error_code and not topic.partitions):
            reason = error_name(topic.error_code) if topic is not None else "no answer for it"
            sentences[f"topic {place.topic}: {reason}; create it, or correct the name"] = None
        elif place.partition not in topic.partitions:
            sentences[
                f"{place}: the topic has {counted(len(topic.partitions), 'partition')}, 0 to {len(topic.partitions) - 1}"
            ] = None
    return list(sentences)


def _all_of(asked: Iterable[_K], answered: dict[_K, _T], api: str) -> dict[_K, _T]:
    missing = [one for one in asked if one not in answered]
    if missing:
        raise RetriableError("PROTOCOL", f"the answer to {api} leaves out {missing[0]}")
    return answered
