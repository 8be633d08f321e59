"""One real cluster as its clients and its operator use it in one round: only topics and groups of the round are in it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from tests.support import mirror_runs
from tests.support.one_batch import one_batch_producer

_TIMEOUT_S = 30
_NOT_READY = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
_LONGEST_TXN_MS = 900_000
"""`transaction.max.timeout.ms` of brokers."""


@dataclass
class RealTxn:
    """An open transaction of a writer: how many records it wrote, by partition."""

    producer: Producer
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


class RealCluster:
    """`suffix`: of the names of all topics, before a first dot, and of all groups."""

    def __init__(self, bootstrap: str, suffix: str) -> None:
        self.bootstrap, self._suffix = bootstrap, suffix
        self._admin = mirror_runs.admin(bootstrap)
        self._writers = 0

    # --- topics ---

    def create_topic(self, topic: str, partitions: int) -> None:
        mirror_runs.create_topic(self.bootstrap, topic, partitions)

    def delete_topic(self, topic: str) -> None:
        mirror_runs.delete_topic(self.bootstrap, topic)

    def add_partitions(self, topic: str, partitions: int) -> None:
        mirror_runs.add_partitions(self.bootstrap, topic, partitions)
        mirror_runs.wait_for(f"partitions of {topic}", lambda: self.partitions(topic) == partitions)
        for partition in range(partitions):
            mirror_runs.wait_for(f"a leader of {topic}-{partition}", partial(self._is_led, topic, partition))

    def _is_led(self, topic: str, partition: int) -> bool:
        topic_partition = TopicPartition(topic, partition)
        return self._admin.list_offsets({topic_partition: OffsetSpec.latest()})[topic_partition].exception(_TIMEOUT_S) is None

    def set_config(self, topic: str, name: str, value: str) -> None:
        mirror_runs.set_topic(self.bootstrap, topic, {name: value})

    def topic_ids(self) -> dict[str, str]:
        names = list(self._partitions())
        described = self._admin.describe_topics(TopicCollection(names)) if names else {}
        return {name: _text_of(future.result(_TIMEOUT_S).topic_id) for name, future in described.items()}

    def partitions(self, topic: str) -> int:
        return self._partitions()[topic]

    def _partitions(self) -> dict[str, int]:
        listed = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        return {name: len(each.partitions) for name, each in listed.items() if name.partition(".")[0].endswith(self._suffix)}

    # --- writers ---

    def produce(self, topic: str, partition: int, values: list[str], txn: RealTxn | None = None) -> int:
        """Write one batch; return the offset of its first record."""
        producer = one_batch_producer(self.bootstrap, topic) if txn is None else txn.producer
        offsets = list[int]()

        def on_delivery(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for value in values:
            producer.produce(topic, value, b"k", partition=partition, on_delivery=on_delivery)
        assert producer.flush(_TIMEOUT_S) == 0
        assert len(offsets) == len(values)
        if txn is not None:
            txn.sequences[topic, partition] = txn.sequences.get((topic, partition), 0) + len(values)
        return min(offsets)

    def begin(self) -> RealTxn:
        self._writers += 1
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"writer-{self._writers}{self._suffix}",
                "transaction.timeout.ms": _LONGEST_TXN_MS,
                "log_level": 0,
            }
        )
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        return RealTxn(producer)

    def end(self, txn: RealTxn, *, is_commit: bool) -> None:
        """Return when the markers are written, which comes after the response to the commit."""
        ends = {topic_partition: self.bounds(*topic_partition)[1] for topic_partition in txn.sequences}
        if is_commit:
            txn.producer.commit_transaction(_TIMEOUT_S)
        else:
            txn.producer.abort_transaction(_TIMEOUT_S)
        for topic_partition, end in ends.items():
            mirror_runs.wait_for(f"the marker in {topic_partition}", partial(self._is_beyond, topic_partition, end))

    def _is_beyond(self, topic_partition: tuple[str, int], end: int) -> bool:
        return self.bounds(*topic_partition)[1] > end

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        mirror_runs.delete_records(self.bootstrap, topic, before, partition)

    # --- readers ---

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        topic_partition = TopicPartition(topic, partition)
        asked = [
            self._admin.list_offsets({topic_partition: spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED)[topic_partition]
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        start, end = (int(future.result(_TIMEOUT_S).offset) for future in asked)
        return start, end

    def read(self, topic: str, partition: int) -> dict[int, str]:
        """Return what a read_committed consumer sees, without tombstones: values by offset."""
        records = mirror_runs.read_partitions(self.bootstrap, [(topic, partition)])[topic, partition]
        return {record.offset: record.value.decode() for record in records if record.value is not None}

    # --- groups ---

    def commit_group(self, group: str, topic: str, partition: int, offset: int) -> None:
        topic_partition = TopicPartition(topic, partition, offset)
        mirror_runs.wait_for(f"the coordinator of {group}", lambda: self._is_committed(group, topic_partition))

    def _is_committed(self, group: str, topic_partition: TopicPartition) -> bool:
        """Return False where the coordinator is not ready yet, as in the first seconds of a broker. Raises KafkaException."""
        (future,) = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [topic_partition])]).values()
        try:
            (answered,) = future.result(_TIMEOUT_S).topic_partitions
        except KafkaException as refused:
            error = refused.args[0]
        else:
            error = answered.error
        if error is None:
            return True
        if error.code() not in _NOT_READY:
            raise KafkaException(error)
        return False

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        (future,) = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return {
            (topic_partition.topic, topic_partition.partition): topic_partition.offset
            for topic_partition in future.result(_TIMEOUT_S).topic_partitions
        }

    def delete_everything(self) -> None:
        """Delete the topics and groups of the round."""
        for topic in self._partitions():
            self.delete_topic(topic)
        listed = self._admin.list_consumer_groups().result(_TIMEOUT_S).valid
        groups = [each.group_id for each in listed if each.group_id.endswith(self._suffix)]
        for future in (self._admin.delete_consumer_groups(groups) if groups else {}).values():
            future.result(_TIMEOUT_S)


def _text_of(topic_id: Any) -> str:
    """As Kafka writes it; the client library has the other alphabet of base64."""
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    raw = b"".join(half.to_bytes(8, "big", signed=True) for half in halves)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
