"""Driver: a note that one who writes to a cluster leaves there: the metadata of a consumer group's only offset."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.errors import Retriable

MAX_NOTE_BYTES = 4000
"""Below the brokers' default of `offset.metadata.max.bytes`, 4096."""

_PAUSE_S = 0.2
_MAY_PASS = frozenset({KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS})
"""Answers of a cluster whose internal topic of groups is only being made, or moves."""

_T = TypeVar("_T")


def write_group_note(client: ClientConfig, group: str, topic: str, note: str, *, timeout_s: float) -> None:
    """At partition 0 of `topic`, in the place of the note before. It goes with the topic, and with `offsets.retention.minutes`.

    Raises Retriable, also for a right that is missing.
    """
    admin, wanted = _admin(client), ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0, note)])

    def write() -> None:
        for future in admin.alter_consumer_group_offsets([wanted], request_timeout=timeout_s).values():
            for one in future.result(timeout_s + 1).topic_partitions:
                if one.error is not None:
                    raise KafkaException(one.error)

    _patiently(f"writing to the consumer group {group}", write, timeout_s)


def read_group_notes(client: ClientConfig, suffix: str, *, timeout_s: float) -> dict[str, str]:
    """The notes of all groups whose names end so. Raises Retriable, also for a right that is missing."""
    admin, notes = _admin(client), dict[str, str]()

    def groups() -> list[str]:
        listed = admin.list_consumer_groups(request_timeout=timeout_s).result(timeout_s + 1)
        if listed.errors:
            raise KafkaException(listed.errors[0])
        return sorted(one.group_id for one in listed.valid if one.group_id.endswith(suffix))

    def read(group: str) -> None:
        for future in admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=timeout_s
        ).values():
            for one in future.result(timeout_s + 1).topic_partitions:
                if one.metadata:
                    notes[group] = one.metadata

    for name in _patiently("listing consumer groups", groups, timeout_s):
        _patiently(f"reading the consumer group {name}", lambda group=name: read(group), timeout_s)  # type: ignore[misc]
    return notes


def _admin(client: ClientConfig) -> AdminClient:
    return AdminClient({**client.as_confluent(), "log_level": "0"})


def _patiently(what: str, attempt: Callable[[], _T], timeout_s: float) -> _T:
    give_up_at = time.monotonic() + timeout_s
    while True:
        try:
            return attempt()
        except KafkaException as error:
            failure = error.args[0]
            if failure.code() not in _MAY_PASS or time.monotonic() > give_up_at:
                raise Retriable(failure.name(), f"{what}: {failure.str()}") from error
            time.sleep(_PAUSE_S)
        except TimeoutError as error:
            raise Retriable("REQUEST_TIMED_OUT", what) from error
