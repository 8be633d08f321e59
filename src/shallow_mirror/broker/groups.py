"""Driver and reading commands: consumer groups of one cluster through confluent-kafka's AdminClient."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.error_codes import ErrorClass, error_class, error_name
from shallow_mirror.errors import ConfigError, OutcomeUnknown, Retriable
from shallow_mirror.types import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_AT_ONCE = 50
"""Requests on the way together: there is one for each group."""

_UNKNOWN_MEMBER, _UNSTABLE, _FORBIDDEN = 25, 88, (29, 30, 31)
_COORDINATOR_COMES = (14, 15, 16)
"""A cluster that had no groups yet answers so for a moment; so does one whose broker went away."""
_COORDINATOR_NAMES = tuple(map(error_name, _COORDINATOR_COMES))
_PAUSE_S = 0.2
_LATE_S = 1.0
_FREE_STATES = ("EMPTY", "DEAD")

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset to read. `offset` None: a transaction that commits one is not over yet, and nobody knows it before."""

    topic_partition: TopicPartition
    offset: int | None
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """`clients`: client id and host of each member. `state` is Kafka's word; only a group without members takes offsets."""

    state: str
    clients: tuple[str, ...]

    @property
    def is_free(self) -> bool:
        return self.state in _FREE_STATES and not self.clients


class GroupAdmin:
    """Not for several threads. Raises Retriable where the cluster does not answer within `timeout_s`, ConfigError where a right
    is missing."""

    def __init__(self, client: ClientConfig, where: str, *, timeout_s: float | None = None) -> None:
        """`where` names the cluster in errors; `timeout_s` of each request, that of the client by default."""
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({**client.as_confluent(), "log_level": "0"})
        self._where, self._timeout_s = where, timeout_s or client.request_timeout_ms / 1000

    def names(self) -> list[str]:
        """Of every group that may have committed offsets."""
        answer = self._result(self._admin.list_consumer_groups(request_timeout=self._timeout_s), "listing the consumer groups")
        for error in answer.errors:  # of one broker, whose groups would seem to be gone
            self._raise_for(_kafka_error(error), "listing the consumer groups")
        return sorted(one.group_id for one in answer.valid)

    def committed(self, groups: Sequence[str]) -> dict[str, tuple[CommittedOffset, ...]]:
        """In order of place. A group that does not exist has none."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        def ask(group: str) -> Future[Any]:
            asked = [ConsumerGroupTopicPartitions(group)]
            options = {"require_stable": True, "request_timeout": self._timeout_s}
            return _only(self._admin.list_consumer_group_offsets(asked, **options))

        def parse(group: str, answer: Any) -> tuple[CommittedOffset, ...]:
            return tuple(sorted(self._committed_of(group, answer), key=lambda one: one.topic_partition))

        return self._all(groups, ask, parse, "reading the offsets of group")

    def _committed_of(self, group: str, answer: Any) -> Iterator[CommittedOffset]:
        for one in answer.topic_partitions:
            place = TopicPartition(one.topic, one.partition)
            if one.error is not None and one.error.code() != _UNSTABLE:
                self._raise_for(one.error, f"reading the offset of group {group} on {place}")
            if one.error is not None:
                yield CommittedOffset(place, None, "")
            elif one.offset >= 0:
                yield CommittedOffset(place, one.offset, one.metadata or "")

    def members(self, groups: Sequence[str]) -> dict[str, GroupMembers]:
        """Of groups that exist or not."""

        def ask(group: str) -> Future[Any]:
            return _only(self._admin.describe_consumer_groups([group], request_timeout=self._timeout_s))

        def parse(_: str, answer: Any) -> GroupMembers:
            clients = tuple(f"{one.client_id} at {one.host.lstrip('/')}" for one in answer.members)
            return GroupMembers(answer.state.name, clients)

        return self._all(groups, ask, parse, "describing group")

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, str]:
        """Offset and metadata of each. Returns a sentence for each that the cluster refused.

        The broker refuses offsets of a group that has members. Raises OutcomeUnknown where no answer came.
        """
        give_up_at, waiting, refused = time.monotonic() + self._timeout_s, dict(offsets), dict[TopicPartition, str]()
        while True:
            errors = self._commit_once(group, waiting)
            is_over = time.monotonic() >= give_up_at
            later = {place for place, error in errors.items() if error.code() in _COORDINATOR_COMES and not is_over}
            refused |= {place: _refusal(error) for place, error in errors.items() if place not in later}
            if not later:
                return refused
            waiting = {place: one for place, one in waiting.items() if place in later}
            time.sleep(_PAUSE_S)

    def _commit_once(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, KafkaError]:
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
        from confluent_kafka import TopicPartition as Place

        places = [Place(one.topic, one.partition, offset, metadata) for one, (offset, metadata) in offsets.items()]
        asked, what = [ConsumerGroupTopicPartitions(group, places)], f"{self._where}: committing offsets of group {group}"
        try:
            future = _only(self._admin.alter_consumer_group_offsets(asked, request_timeout=self._timeout_s))
            answer = future.result(self._timeout_s + _LATE_S)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() < 0:
                raise OutcomeUnknown(f"{what}: {error.str()}") from failure
            return dict.fromkeys(offsets, error)
        except FutureTimeout as error:
            raise OutcomeUnknown(f"{what}: no answer came") from error
        return {
            TopicPartition(one.topic, one.partition): one.error
            for one in answer.topic_partitions
            if one.error is not None and one.error.code() != 0
        }

    def _all(
        self, groups: Sequence[str], ask: Callable[[str], Future[Any]], parse: Callable[[str, Any], _T], what: str
    ) -> dict[str, _T]:
        """Some at once; those whose coordinator is not there yet again."""
        give_up_at, found = time.monotonic() + self._timeout_s, dict[str, _T]()
        for first in range(0, len(groups), _AT_ONCE):
            waiting = list(groups[first : first + _AT_ONCE])
            while waiting:
                asked, waiting = [(one, ask(one)) for one in waiting], []
                for one, future in asked:
                    try:
                        found[one] = parse(one, self._result(future, f"{what} {one}"))
                    except Retriable as error:
                        if error.error_name not in _COORDINATOR_NAMES or time.monotonic() >= give_up_at:
                            raise
                        waiting.append(one)
                if waiting:
                    time.sleep(_PAUSE_S)
        return found

    def _result(self, future: Future[Any], what: str) -> Any:
        from confluent_kafka import KafkaException

        try:
            return future.result(self._timeout_s + _LATE_S)
        except KafkaException as failure:
            self._raise_for(failure.args[0], what)
            raise
        except FutureTimeout as error:
            raise Retriable("REQUEST_TIMED_OUT", f"{self._where}: {what}: no answer came") from error

    def _raise_for(self, error: KafkaError, what: str) -> None:
        if error.code() in _FORBIDDEN:
            raise ConfigError(f"{self._where}: {what}: {error_name(error.code())}: {_ACLS}")
        if error.code() < 0 or error_class(error.code()) is not ErrorClass.DEFINITE:
            name = error.name() if error.code() < 0 else error_name(error.code())
            raise Retriable(name, f"{self._where}: {what}: {error.str()}")
        raise ConfigError(f"{self._where}: {what}: the broker answered {error.str()}")


_ACLS = (
    "grant Describe on the groups and their topics, and on the cluster that is written to also Read on both, to the user of the "
    "mirror file"
)


def _refusal(error: KafkaError) -> str:
    if error.code() == _UNKNOWN_MEMBER:
        return "the group is active there: stop its consumers first"
    if error.code() in _FORBIDDEN:
        return f"{error_name(error.code())}: {_ACLS}"
    return str(error.str())


def _kafka_error(error: Any) -> KafkaError:
    return error.args[0] if isinstance(error, Exception) else error


def _only(futures: Mapping[Any, Future[_R]]) -> Future[_R]:
    (future,) = futures.values()
    return future
