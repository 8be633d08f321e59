"""Topics of the two clusters: made, changed, deleted, how far they go and what lies in them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from shallow_mirror.broker.clients.batch_consumer import BatchConsumer
from shallow_mirror.broker.clients.fetched_batches import FetchedBatch
from shallow_mirror.types import IsolationLevel, TopicPartition

_TIMEOUT_S = 30.0
_POLL_BYTES, _POLL_MS = 16 << 20, 10_000.0
MAX_MESSAGE_BYTES = 10_485_760


def create_topic(
    bootstrap: str, topic: str, partitions: int, settings: Mapping[str, str], *, leaders: Sequence[int] | None = None
) -> None:
    """Return when clients see all its partitions. `leaders`: the node of the only replica of each; None: the cluster chooses."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {"compression.type": "producer", "max.message.bytes": str(MAX_MESSAGE_BYTES), "retention.ms": "-1", **settings}
    if leaders is None:
        new_topic = NewTopic(topic, partitions, 1, config=config)
    else:
        new_topic = NewTopic(topic, partitions, replica_assignment=[[leader] for leader in leaders], config=config)
    admin.create_topics([new_topic])[topic].result(_TIMEOUT_S)
    give_up_at = time.monotonic() + _TIMEOUT_S
    while len(_partitions(admin, topic)) < partitions:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"topic {topic} did not come within {_TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def set_topic(bootstrap: str, topic: str, settings: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(_TIMEOUT_S)


def stored_batches(bootstrap: str, topic: str) -> Iterator[FetchedBatch]:
    """All that lie in a topic, markers and aborted ones too; each until the next is asked for."""
    ends = {place: end for place, end in log_end_offsets(bootstrap, topic).items() if end}
    with BatchConsumer({"bootstrap.servers": bootstrap}, isolation=IsolationLevel.READ_UNCOMMITTED) as consumer:
        consumer.assign(dict.fromkeys(ends, "earliest"))
        while any(consumer.position(place) < end for place, end in ends.items()):
            yield from consumer.poll_batches(_POLL_BYTES, _POLL_MS)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(_TIMEOUT_S)


def log_end_offsets(bootstrap: str, topic: str, *, is_committed: bool = False) -> dict[TopicPartition, int]:
    """High watermarks, or, with `is_committed`, last stable offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "shallow-mirror-bench",
            "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            "log_level": 0,
        }
    )
    try:
        return {
            TopicPartition(topic, partition): consumer.get_watermark_offsets(ClientPartition(topic, partition), _TIMEOUT_S)[1]
            for partition in _partitions(admin, topic)
        }
    finally:
        consumer.close()


def log_bytes(log_dir: Path, topic: str) -> int:
    """Of the log segments of a topic, read from the folder of its broker: nobody is asked."""
    total = 0
    for folder in log_dir.glob(f"{topic}-[0-9]*"):
        if folder.name.rpartition("-")[0] == topic:
            total += sum(_size(file) for file in folder.glob("*.log"))
    return total


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _partitions(admin: AdminClient, topic: str) -> list[int]:
    try:
        listed = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
    except KafkaException:
        return []
    return sorted(listed.partitions) if listed.error is None else []
