"""A loop as one writes it with confluent-kafka: consume some thousand records, produce each again, until every end.

    python confluent_copy.py '{"source": …, "target": …, "source_topic": …, "target_topic": …, "partitions": 4, "codec": "zstd"}'

With "ca", a PEM file, both connections are TLS and check the host name, as librdkafka does by default.
Idempotent, without transactions. Every setting is in this file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

CONSUMER = {
    "group.id": "shallow-mirror-bench-loop",
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 4_194_304,
    "queued.max.messages.kbytes": 65_536,
    "check.crcs": False,
}
PRODUCER = {
    "enable.idempotence": True,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "linger.ms": 100,
    "message.max.bytes": 10_485_760,
    "queue.buffering.max.kbytes": 131_072,
    "queue.buffering.max.messages": 1_000_000,
}
"""And the codec of the source."""

RECORDS_AT_ONCE, WITHIN_S = 5_000, 0.2
"""`consume` waits for all of the first or the end of the second."""

_PATIENCE_S = 60.0


def copy(job: dict[str, Any]) -> None:
    security = {"security.protocol": "ssl", "ssl.ca.location": job["ca"]} if "ca" in job else {}
    consumer = Consumer({"bootstrap.servers": job["source"], **security, **CONSUMER})
    producer = Producer({"bootstrap.servers": job["target"], "compression.type": job["codec"], **security, **PRODUCER})
    reading = set(range(job["partitions"]))
    consumer.assign([TopicPartition(job["source_topic"], partition, OFFSET_BEGINNING) for partition in reading])
    while reading:
        for message in consumer.consume(RECORDS_AT_ONCE, WITHIN_S):
            error = message.error()
            if error is None:
                _produce(producer, job["target_topic"], message)
            elif error.code() == KafkaError._PARTITION_EOF:
                reading.discard(message.partition())
            else:
                raise KafkaException(error)
        producer.poll(0)
    if producer.flush(_PATIENCE_S):
        raise SystemExit("records were left unsent")


def _produce(producer: Producer, topic: str, message: Any) -> None:
    while True:
        try:
            producer.produce(
                topic,
                message.value(),
                message.key(),
                message.partition(),
                timestamp=message.timestamp()[1],
                headers=message.headers(),
                on_delivery=_require_delivered,
            )
        except BufferError:
            producer.poll(0.1)
        else:
            return


def _require_delivered(error: KafkaError | None, message: Any) -> None:
    if error is not None:
        raise KafkaException(error)


if __name__ == "__main__":
    copy(json.loads(sys.argv[1]))
