"""A source and a target that are as strict as brokers, and one slot between them."""

from __future__ import annotations

import base64
import functools
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch, record

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce.txn import EndTxnAnswer, end_txn
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks import RoutedTopic, SlotResult
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.kafka.writers.slot_target import open_kafka_target
from shallow_mirror.sinks.slots import arrow_batch_of
from shallow_mirror.sinks.slots.slot_task import run_slot
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, PlannedRange, SourcePartition
from shallow_mirror.wire import BATCH_HEADER_BYTES, CONTROL_BIT

ORDERS = uuid.UUID(bytes=b"topic of a test!")
A, B = (SourcePartition("orders", "dG9waWMgb2YgYSB0ZXN0IQ", partition) for partition in (0, 1))
LIMITS = BatchLimits(
    max_message_bytes=1 << 20, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
)


def create_target(target: StrictCluster, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic with the id that `route_to` gives it."""
    target.create_topic(topic, partitions, topic_id=_id_of(topic), **configs)


def route_to(topic: str, limits: BatchLimits = LIMITS) -> RoutedTopic:
    topic_id = base64.urlsafe_b64encode(_id_of(topic).bytes).decode().rstrip("=")
    return RoutedTopic(target_topic=topic, target_topic_id=topic_id, limits=limits)


def _id_of(topic: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, topic)


def run_kafka_slot(job: KafkaSlotJob, rows: Iterator[pa.RecordBatch], *, is_planned_ranges: bool) -> SlotResult:
    """Run a slot whose sink is a Kafka transaction."""
    open_target = functools.partial(open_kafka_target, job)
    return run_slot(job, rows, is_planned_ranges=is_planned_ranges, open_target=open_target)


class Clusters:
    """Source topic `orders` and target topic `copy`, of two partitions each."""

    def __init__(self, source: StrictCluster, target: StrictCluster) -> None:
        self.source, self.target = source, target
        source.create_topic("orders", 2, topic_id=ORDERS)
        create_target(target, "copy", 2)
        self.written: dict[SourcePartition, list[bytes]] = {A: [], B: []}

    def write(self, source: SourcePartition, *counts: int) -> None:
        log = self.source.log(source.topic, source.partition)
        for count in counts:
            at = log.end_offset
            raw = batch(at, count, payload=b"".join(record(delta, value=b"%d" % (at + delta)) for delta in range(count)))
            self.source.seed((source.topic, source.partition), raw)
            self.written[source].append(raw)

    def job(self, positions: dict[SourcePartition, int], **changes: Any) -> KafkaSlotJob:
        settings: dict[str, Any] = {
            "mirror": "m",
            "map_id": "map",
            "run_id": "run",
            "decision": 2,
            "source": client_of(self.source),
            "target": client_of(self.target),
            "routes": {"orders": route_to("copy")},
            "positions": positions,
            "epoch_ends": {},
            "target_ends": {},
            "isolation": IsolationLevel.READ_COMMITTED,
            "fetch_bytes": 1 << 16,
            "in_flight_requests": 5,
            "in_flight_bytes": 1 << 20,
            "max_segments": 1000,
            "commit_interval_ms": 5_000.0,
            "transaction_timeout_ms": 60_000,
            "time_left_ms": 10_000.0,
        }
        return KafkaSlotJob(**settings | changes)

    def run(self, job: KafkaSlotJob, *ranges: PlannedRange) -> SlotResult:
        return run_kafka_slot(job, iter([arrow_batch_of(ranges)]), is_planned_ranges=True)

    def committed(self, result: SlotResult, source: SourcePartition, topic: str = "copy") -> list[bytes]:
        """Record sections that the target shows to read_committed readers once the slot's transaction has ended."""
        assert result.txn is not None
        cluster = Cluster(client_of(self.target))
        assert end_txn(cluster, result.txn, True, Deadline.after_ms(5_000, time.monotonic)) is EndTxnAnswer.ENDED
        cluster.close()
        log = self.target.log(topic, source.partition)
        return [
            batch.data[BATCH_HEADER_BYTES:]
            for batch in log.batches
            if not batch.header.attributes & CONTROL_BIT
            and not any(
                gone.producer_id == batch.header.producer_id and gone.first_offset <= batch.header.base_offset <= gone.last_offset
                for gone in log.aborted
            )
        ]


def client_of(cluster: StrictCluster) -> ClientConfig:
    return ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": 2000})


def planned(source: SourcePartition, end: int, start: int = 0) -> PlannedRange:
    return PlannedRange(slot=3, source=source, start=start, end=end, bytes_per_offset=100.0)


def payloads(batches: Sequence[bytes]) -> list[bytes]:
    return [batch[BATCH_HEADER_BYTES:] for batch in batches]
