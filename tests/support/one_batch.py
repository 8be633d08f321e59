"""A producer whose batches do not depend on how fast the machine is."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

LONGER_THAN_ANY_TEST_PRODUCES_MS = 30_000


def one_batch_producer(bootstrap: str, topic: str, **settings: Any) -> Producer:
    """Return a producer that writes one record batch to a partition of `topic` between two flushes, while it is small."""
    lingering = {"linger.ms": LONGER_THAN_ANY_TEST_PRODUCES_MS, "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **lingering, **settings})
    producer.list_topics(topic, 30)  # known before the first record: else those that waited for it are handed over one by one
    return producer
