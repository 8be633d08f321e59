"""Driver: a note that one who writes to a cluster leaves there: the metadata of a consumer group's only offset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.errors import Retriable

MAX_NOTE_BYTES = 4000
"""Below the brokers' default of `offset.metadata.max.bytes`, 4096."""


def write_group_note(client: ClientConfig, group: str, topic: str, note: str, *, timeout_s: float) -> None:
    """At partition 0 of `topic`, in the place of the note before. It goes with the topic, and with `offsets.retention.minutes`.

    Raises Retriable, also for a right that is missing.
    """
    admin = _admin(client)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0, note)])
    with _told(f"writing to the consumer group {group}"):
        futures = admin.alter_consumer_group_offsets([wanted], request_timeout=timeout_s)
        for future in futures.values():
            for one in future.result(timeout_s + 1).topic_partitions:
                if one.error is not None:
                    raise KafkaException(one.error)


def read_group_notes(client: ClientConfig, suffix: str, *, timeout_s: float) -> dict[str, str]:
    """The notes of all groups whose names end so. Raises Retriable, also for a right that is missing."""
    admin = _admin(client)
    notes = {}
    with _told("listing consumer groups"):
        listed = admin.list_consumer_groups(request_timeout=timeout_s).result(timeout_s + 1)
        if listed.errors:
            raise KafkaException(listed.errors[0].args[0])
        for group in sorted(one.group_id for one in listed.valid if one.group_id.endswith(suffix)):
            futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=timeout_s)
            for future in futures.values():
                for one in future.result(timeout_s + 1).topic_partitions:
                    if one.metadata:
                        notes[group] = one.metadata
    return notes


def _admin(client: ClientConfig) -> AdminClient:
    return AdminClient({**client.as_confluent(), "log_level": "0"})


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise Retriable(error.args[0].name(), f"{what}: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise Retriable("REQUEST_TIMED_OUT", what) from error
