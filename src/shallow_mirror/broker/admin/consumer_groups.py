"""Driver and reading commands: consumer groups of one cluster.

With requests of our own, because librdkafka's ListConsumerGroupOffsets ends the whole process where a coordinator is
unavailable for a moment (librdkafka issue 5040), and a mirror may run in it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from shallow_mirror.broker.admin.group_requests import BegunCommit, BegunOffsets, begin_commits, begin_offsets
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.begun_call import BegunCall
from shallow_mirror.broker.net.error_codes import ErrorClass, error_class, error_name, is_forbidden
from shallow_mirror.broker.net.requests import call
from shallow_mirror.broker.produce.txn.coordinator_requests import LOOK_FOR_COORDINATOR, BegunRequest, ask_coordinator
from shallow_mirror.broker.produce.txn.txn_offsets import add_group_offsets, requested_offsets
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, OutcomeUnknownError, RetriableError
from shallow_mirror.types import SlotTxn, TopicPartition
from shallow_mirror.wire.protocol import group_offsets

_METADATA_TOO_LARGE, _UNKNOWN_MEMBER, _UNSTABLE = 12, 25, 88
METADATA_TOO_LARGE = "its metadata is larger than offset.metadata.max.bytes of that cluster"
"""The sentence of an offset that was refused for that."""
_COORDINATOR_COMES = frozenset({14, 15, 16})
"""A cluster that had no groups yet answers so for a moment; so does one whose broker became unreachable."""
_OF_CONSUMERS = ("consumer", "streams", "")
"""Protocol types: the second is that of KIP-1071, the last that of groups which only ever committed offsets."""
_FREE_STATES = ("Empty", "Dead")


_ACLS = (
    "grant Describe on the groups and their topics, and on the cluster that is written to also Read on both, to the user of the "
    "mirror file"
)

MAX_NOTE_BYTES = 4000
"""Below the brokers' default of `offset.metadata.max.bytes`, 4096."""


class CommittedOffset(NamedTuple):
    """The next offset to read. `offset` None: a transaction that commits one is not over yet."""

    topic_partition: TopicPartition
    offset: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """`state` is Kafka's word; only a group without members takes offsets of others."""

    name: str
    state: str

    @property
    def is_free(self) -> bool:
        return self.state in _FREE_STATES


class ConsumerGroups:
    """Groups of one cluster. Raises RetriableError if it does not answer in time, ConfigError if an ACL is missing."""

    def __init__(self, cluster: Cluster, where: str) -> None:
        """Take `where` as the name of the cluster in errors."""
        self._cluster = cluster
        self._where = where

    def listed(self, deadline: Deadline) -> dict[str, ListedGroup]:
        """Return every group that may have committed offsets, as its coordinator reports it."""
        with self._named():
            return self._cluster.retrying("listing consumer groups", self._listed, deadline)

    def _listed(self, deadline: Deadline) -> dict[str, ListedGroup]:
        groups = {}
        for node_id in self._cluster.metadata([], deadline).brokers:
            connection = self._cluster.connection(node_id, "control", deadline)
            response = call(connection, "ListGroups", deadline, states_filter=[])
            self._raise_for(response.error_code, "listing consumer groups")
            for group in response.groups:
                if group.protocol_type in _OF_CONSUMERS:
                    groups[group.group_id] = ListedGroup(group.group_id, group.group_state)
                    self._cluster.learn_coordinator(CoordinatorKind.GROUP, group.group_id, node_id)
        return groups

    def begin_committed(
        self, groups: Sequence[str], deadline: Deadline, purposes: Sequence[str], *, waits_for_txns: bool = True
    ) -> dict[str, BegunOffsets]:
        """Send the requests of `committed` of many groups. `purposes`: of the connections to each coordinator."""
        return begin_offsets(self._cluster, groups, deadline, purposes, waits_for_txns=waits_for_txns)

    def committed(
        self,
        group: str,
        deadline: Deadline,
        *,
        waits_for_txns: bool = True,
        begun: BegunOffsets | None = None,
    ) -> tuple[CommittedOffset, ...]:
        """Return the committed offsets in order of topic-partition.

        `waits_for_txns`: the offset is None while a transaction that commits another one is open; else it is that of before.
        `begun`: the same request was sent already.
        """
        with self._named():
            fetched, alone = None, None
            if isinstance(begun, BegunRequest):
                alone = begun
            elif begun is not None:
                fetched = self._fetched_together(group, begun, deadline)
            if fetched is None:
                fetched = self._fetched_alone(group, deadline, waits_for_txns, alone)
            self._raise_for(fetched.error_code, f"reading the offsets of group {group}")
            return tuple(sorted(self._offsets(group, fetched.offsets), key=attrgetter("topic_partition")))

    def _fetched_together(
        self, group: str, begun: BegunCall[dict[str, group_offsets.GroupOffsets]], deadline: Deadline
    ) -> group_offsets.GroupOffsets | None:
        """Return the response about a group among others; None if it has to be requested again, for this group alone."""
        try:
            fetched = begun.receive(deadline.sooner(self._cluster.config.request_timeout_ms)).get(group)
        except RetriableError:
            self._cluster.forget_coordinator(CoordinatorKind.GROUP, group)
            return None
        if fetched is None or fetched.error_code == 0:
            return fetched
        if fetched.error_code in LOOK_FOR_COORDINATOR:
            self._cluster.forget_coordinator(CoordinatorKind.GROUP, group)
        return None if error_class(fetched.error_code) in (ErrorClass.RETRIABLE, ErrorClass.UNKNOWN) else fetched

    def _fetched_alone(
        self, group: str, deadline: Deadline, waits_for_txns: bool, begun: BegunRequest | None
    ) -> group_offsets.GroupOffsets:
        response = self._ask(
            group,
            "OffsetFetch",
            lambda response: int(response.error_code),
            deadline,
            group_id=group,
            topics=None,
            require_stable=waits_for_txns,
            begun=begun,
        )
        offsets = [
            group_offsets.FetchedOffset(
                topic.name, partition.partition_index, partition.committed_offset, partition.metadata, partition.error_code
            )
            for topic in response.topics
            for partition in topic.partitions
        ]
        return group_offsets.GroupOffsets(response.error_code, offsets)

    def _offsets(self, group: str, fetched: Iterable[group_offsets.FetchedOffset]) -> Iterator[CommittedOffset]:
        for topic, partition, offset, metadata, error_code in fetched:
            topic_partition = TopicPartition(topic, partition)
            if error_code == _UNSTABLE:
                yield CommittedOffset(topic_partition, None, "")
                continue
            if error_code:
                self._raise_for(error_code, f"reading the offset of group {group} on {topic_partition}")
            if offset >= 0:
                yield CommittedOffset(topic_partition, offset, metadata or "")

    def clients(self, group: str, deadline: Deadline) -> tuple[str, ...]:
        """Return client id and host of each member. Not of groups of the newer protocol (KIP-848)."""
        with self._named():
            response = self._ask(
                group,
                "DescribeGroups",
                lambda response: int(response.groups[0].error_code),
                deadline,
                groups=[group],
                include_authorized_operations=False,
            )
            self._raise_for(response.groups[0].error_code, f"describing group {group}")
            return tuple(f"{member.client_id} at {member.client_host.lstrip('/')}" for member in response.groups[0].members)

    def begin_commits(
        self, offsets: Mapping[str, Mapping[TopicPartition, tuple[int, str]]], deadline: Deadline, purposes: Sequence[str]
    ) -> dict[str, BegunCommit]:
        """Send the requests of `commit` of many groups. `purposes`: of the connections to each coordinator."""
        return begin_commits(self._cluster, offsets, deadline, purposes)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, tuple[int, str]],
        deadline: Deadline,
        *,
        begun: BegunCommit | None = None,
    ) -> dict[TopicPartition, str]:
        """Commit offset and metadata of each. Return a sentence for each that the cluster refused.

        The broker refuses offsets of a group that has members. `begun`: the same request was sent already. Raises
        OutcomeUnknownError if no answer came.
        """
        if begun is not None and self._is_accepted(begun, deadline):
            return {}
        fields = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": requested_offsets("OffsetCommit", offsets),
        }
        try:
            response = self._ask(group, "OffsetCommit", _worst_of_coordinator, deadline, begun=begun, **fields)
        except RetriableError as error:
            raise OutcomeUnknownError(f"{self._where}: committing offsets of group {group}: {error}") from error
        codes = {
            TopicPartition(topic.name, entry.partition_index): entry.error_code
            for topic in response.topics
            for entry in topic.partitions
        }
        return {topic_partition: _refusal(code) for topic_partition, code in codes.items() if code}

    def commit_in_txn(
        self, txn: SlotTxn, offsets: Mapping[str, Mapping[TopicPartition, tuple[int, str]]], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, str]]:
        """Add offsets and metadata to a transaction, by group. Return a sentence for each that the cluster refused, by group.

        The broker takes offsets of groups with members, too.
        """
        with self._named():
            refused = add_group_offsets(self._cluster, txn, offsets, deadline)
        return {group: {place: _refusal(code) for place, code in codes.items()} for group, codes in refused.items()}

    def _is_accepted(self, begun: BegunCommit, deadline: Deadline) -> bool:
        """Return whether all offsets were committed; other responses, and failures, are received once more."""
        try:
            return begun.receive(deadline.sooner(self._cluster.config.request_timeout_ms)) is None
        except RetriableError:
            return False

    def _ask(
        self, group: str, api: str, code_of: Any, deadline: Deadline, *, begun: BegunCall[Any] | None = None, **fields: Any
    ) -> Any:
        return ask_coordinator(self._cluster, CoordinatorKind.GROUP, group, api, code_of, deadline, begun=begun, **fields)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the cluster in errors."""
        try:
            yield
        except RetriableError as error:
            raise RetriableError(error.error_name, f"{self._where}: {error.detail}") from error

    def _raise_for(self, code: int, what: str) -> None:
        if code == 0:
            return
        if is_forbidden(code):
            raise ConfigError(f"{self._where}: {what}: {error_name(code)}: {_ACLS}")
        if error_class(code) is ErrorClass.DEFINITE:
            raise ConfigError(f"{self._where}: {what}: the broker answered {error_name(code)}")
        raise RetriableError(error_name(code), what)


def _worst_of_coordinator(response: Any) -> int:
    """Return the code of a coordinator that is not ready: it has all partitions of its group, or none."""
    codes = {partition.error_code for topic in response.topics for partition in topic.partitions}
    return max(codes & _COORDINATOR_COMES, default=0)


def _refusal(code: int) -> str:
    if code == _UNKNOWN_MEMBER:
        return "the group is active there: stop its consumers first"
    if code == _METADATA_TOO_LARGE:
        return METADATA_TOO_LARGE
    return f"{error_name(code)}: {_ACLS}" if is_forbidden(code) else f"the broker answered {error_name(code)}"


def write_group_note(client: ClientConfig, group: str, topics: Collection[str], note: str, *, timeout_s: float) -> None:
    """Commit a note at partition 0 of `topics`, instead of those before. Each is deleted with its topic, and after
    offsets.retention.

    Raises RetriableError, OutcomeUnknownError; ConfigError if the cluster refuses it for a topic.
    """
    notes = {TopicPartition(topic, 0): (0, note) for topic in sorted(topics)}
    if not notes:
        return
    with closing(Cluster(client)) as cluster:
        refusals = ConsumerGroups(cluster, "target").commit(group, notes, _deadline(timeout_s))
    if refusals:
        reasons = "; ".join(f"{place.topic}: {reason}" for place, reason in refusals.items())
        raise ConfigError(f"writing to the consumer group {group}: {reasons}")


def read_group_notes(client: ClientConfig, suffix: str, *, timeout_s: float) -> dict[str, tuple[str, ...]]:
    """Return the notes of all groups whose names end so: of each topic for which the group has one.

    Raises RetriableError; ConfigError if an ACL is missing.
    """
    deadline = _deadline(timeout_s)
    with closing(Cluster(client)) as cluster:
        groups = ConsumerGroups(cluster, "source")
        names = sorted(name for name in groups.listed(deadline) if name.endswith(suffix))
        notes = {name: tuple(committed.metadata for committed in groups.committed(name, deadline)) for name in names}
        return {name: tuple(filter(None, texts)) for name, texts in notes.items()}


def _deadline(timeout_s: float) -> Deadline:
    return Deadline.after_ms(timeout_s * 1000, time.monotonic)
