"""Reads a topic with confluent-kafka: [--ignore-too-large] BOOTSTRAP TOPIC START COUNT."""

import sys
import time

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

QUIET_S = 3.0

ignores_too_large = "--ignore-too-large" in sys.argv
bootstrap, topic, start, count = sys.argv[-4], sys.argv[-3], int(sys.argv[-2]), int(sys.argv[-1])
print(f"version\t{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.__version__})", flush=True)
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
consumer.assign([TopicPartition(topic, 0, start)])
quiet_until = float("inf")
while time.monotonic() < quiet_until:
    message = consumer.poll(0.2)
    if message is None:
        continue
    if message.error() and message.error().code() == KafkaError.MSG_SIZE_TOO_LARGE and ignores_too_large:
        continue
    if message.error():
        raise KafkaException(message.error())
    value = message.value()
    print(f"record\t{message.offset()}\t{'null' if value is None else value.decode()}", flush=True)
    count -= 1
    if count == 0:
        quiet_until = time.monotonic() + QUIET_S
consumer.close()
