"""One strict cluster as its clients and its operator use it: writers, transactions, topics, groups, and a reader of their records."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fakes.admin_apis import add_partitions
from tests.fakes.cluster_state import ClusterState
from tests.fakes.coordinators import Committed
from tests.fakes.partition_log import PartitionLog
from tests.random_archives.documented_reader import read_batches
from tests.support.record_batches import batch, record

_TRANSACTIONAL = 0x10


@dataclass
class WriterTxn:
    """An open transaction of a writer: what it wrote, by partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


class FakeCluster:
    def __init__(self, name: str, now_ms: Callable[[], int]) -> None:
        self.name = name
        self.state = ClusterState(f"{name}-id", now_ms)
        self.state.broker_configs |= {"producer.id.expiration.ms": "86400000", "connections.max.idle.ms": "600000"}
        self._writers = self._topics = 0

    @property
    def bootstrap(self) -> str:
        return f"{self.name}:9092"

    # --- topics ---

    def create_topic(self, topic: str, partitions: int) -> None:
        self._topics += 1
        self.state.create_topic(topic, partitions, topic_id=uuid.uuid5(uuid.NAMESPACE_OID, f"{self.name}{self._topics}"))

    def delete_topic(self, topic: str) -> None:
        self.state.delete_topic(topic)

    def add_partitions(self, topic: str, partitions: int) -> None:
        add_partitions(self.state, topic, partitions)

    def set_config(self, topic: str, name: str, value: str) -> None:
        self.state.log(topic, 0).configs[name] = value

    def topic_ids(self) -> dict[str, str]:
        return {name: _text_of(topic_id.bytes) for name, topic_id in self.state.topic_ids.items()}

    def partitions(self, topic: str) -> int:
        return sum(name == topic for name, _ in self.state.logs)

    # --- writers ---

    def produce(self, topic: str, partition: int, values: list[str], txn: WriterTxn | None = None) -> int:
        """Write one batch; return the offset of its first record."""
        payload = b"".join(record(delta, b"k", value.encode()) for delta, value in enumerate(values))
        now_ms = self.state.now_ms()
        topic_partition = (topic, partition)
        if txn is None:
            raw = batch(0, len(values), payload=payload, timestamp=now_ms)
        else:
            sequence = txn.sequences.get(topic_partition)
            if sequence is None:
                self.state.transactions.add(txn.transactional_id, txn.producer_id, txn.producer_epoch, [topic_partition])
            txn.sequences[topic_partition] = (sequence or 0) + len(values)
            raw = batch(
                0,
                len(values),
                payload=payload,
                timestamp=now_ms,
                attributes=_TRANSACTIONAL,
                producer_id=txn.producer_id,
                producer_epoch=txn.producer_epoch,
                base_sequence=sequence or 0,
            )
        return self._log(topic, partition).append(raw, now_ms).base_offset

    def begin(self) -> WriterTxn:
        self._writers += 1
        name = f"writer-{self._writers}"
        producer_id, epoch = self.state.transactions.init_producer_id(name, 60_000, -1, -1)
        return WriterTxn(name, producer_id, epoch)

    def end(self, txn: WriterTxn, *, is_commit: bool) -> None:
        self.state.transactions.end(txn.transactional_id, txn.producer_id, txn.producer_epoch, is_commit=is_commit)

    def produce_marker(self, topic: str, partition: int) -> None:
        """Write the marker of a transaction without records there: a client has added the partition to it, and aborts it."""
        txn = self.begin()
        self.state.transactions.add(txn.transactional_id, txn.producer_id, txn.producer_epoch, [(topic, partition)])
        self.end(txn, is_commit=False)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._log(topic, partition).delete_records_before(before)

    # --- readers ---

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        log = self._log(topic, partition)
        return log.log_start_offset, log.end_offset

    def read(self, topic: str, partition: int, *, is_committed: bool = True) -> dict[int, str]:
        """Return what a read_committed consumer sees, or another one, without tombstones: values by offset."""
        log = self._log(topic, partition)
        end, values = log.last_stable_offset if is_committed else log.end_offset, dict[int, str]()
        for stored in log.batches:
            header = stored.header
            if header.is_control or header.base_offset >= end:
                continue
            if (
                is_committed
                and header.is_transactional
                and any(
                    aborted.producer_id == header.producer_id and aborted.first_offset <= header.base_offset < aborted.last_offset
                    for aborted in log.aborted
                )
            ):
                continue
            for raw in read_batches(stored.data):
                for each in raw.records():
                    if each.value is not None and each.offset >= log.log_start_offset:
                        values[each.offset] = each.value.decode()
        return values

    def commit_group(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.state.groups.commit_now(group, (topic, partition), Committed(offset, ""))

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        return {
            topic_partition: committed.offset
            for (name, topic_partition), committed in self.state.groups.offsets.items()
            if name == group
        }

    def _log(self, topic: str, partition: int) -> PartitionLog:
        return self.state.logs[topic, partition]


def _text_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
