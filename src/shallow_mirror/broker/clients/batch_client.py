"""Everywhere: a small client for whole record batches, without Spark: `BatchConsumer` and `BatchProducer`.

In the spirit of KIP-712 (shallow mirroring): poll batches from one cluster, send them to another, never open a record.

    with BatchConsumer({"bootstrap.servers": "a:9092"}) as consumer, BatchProducer({"bootstrap.servers": "b:9092"}) as producer:
        consumer.assign({TopicPartition("orders", 0): "earliest"})
        for batch in consumer.poll_batches(max_bytes=1 << 20, timeout_ms=1000):
            producer.send_batch(batch.topic_partition, batch)
        producer.flush()

Bytes are lent, not given: a batch is valid until the next poll of its consumer, or for good after `copy()`.
"""

from __future__ import annotations

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.clients.batch_consumer import BatchConsumer
from shallow_mirror.broker.clients.batch_producer import BatchProducer, TxnState, TxnStateError
from shallow_mirror.broker.clients.fetched_batches import BatchesInFlightError, FetchedBatch, FetchedBatches, StaleBatchError
from shallow_mirror.broker.clients.send_queue import Delivery
from shallow_mirror.types import IsolationLevel, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire import Codec

__all__ = [
    "BatchConsumer",
    "BatchProducer",
    "BatchesInFlightError",
    "ClientConfig",
    "Codec",
    "Delivery",
    "FetchedBatch",
    "FetchedBatches",
    "IsolationLevel",
    "LogAppendTimePolicy",
    "StaleBatchError",
    "TopicPartition",
    "TxnState",
    "TxnStateError",
]
