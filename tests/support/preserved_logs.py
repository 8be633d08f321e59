"""What tests of preserved offsets write to a log, and read of one."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.support.mirror_runs import admin, write, write_stamped


def read_all(bootstrap: str, topic: str, isolation: str) -> list[tuple[int, bytes | None]]:
    """Return offset and value of every record that a consumer returns, from the beginning of the log."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    seen: list[tuple[int, bytes | None]] = []
    try:
        client.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = client.poll(30)
            assert message is not None
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return seen
            offset = message.offset()
            assert offset is not None
            seen.append((offset, message.value()))
    finally:
        client.close()


def earliest(bootstrap: str, topic: str) -> int:
    client, topic_partition = admin(bootstrap), TopicPartition(topic, 0)
    return int(client.list_offsets({topic_partition: OffsetSpec.earliest()})[topic_partition].result(30).offset)


def write_mixed(bootstrap: str, topic: str) -> None:
    """Plain batches, a committed transaction, an aborted one, old records."""
    write(bootstrap, topic, [f"plain {n}" for n in range(5)])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"writer-of-{topic}", "log_level": 0})
    producer.init_transactions(30)
    for is_committed in (True, False, True):
        producer.begin_transaction()
        for n in range(3):
            producer.produce(topic, f"of a transaction {n} {is_committed}")
        assert producer.flush(30) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    write_stamped(bootstrap, topic, [("old", 1_500_000_000_000), ("older", 1_400_000_000_000)])
