"""Transactions for archives: committed and aborted ones, in every partition of a topic."""

from __future__ import annotations

from confluent_kafka import Producer

PARTITIONS = 2


def write_transactions(bootstrap: str, topic: str) -> None:
    """Write to both partitions in turn a committed transaction and an aborted one."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{topic}", "compression.type": "lz4"})
    producer.init_transactions(30)
    for number, is_committed in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            for i in range(20):
                producer.produce(topic, f"{number}-{i}", partition=partition)
        producer.flush(30)
        if is_committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
