"""Reads a topic with confluent-kafka: BOOTSTRAP TOPIC START COUNT."""

import sys
import time

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, TopicPartition

QUIET_S = 3.0

bootstrap, topic, start, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print(f"version\t{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.__version__})", flush=True)
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
consumer.assign([TopicPartition(topic, 0, start)])
quiet_until = float("inf")
while time.monotonic() < quiet_until:
    message = consumer.poll(0.2)
    if message is None:
        continue
    if message.error():
        raise KafkaException(message.error())
    value = message.value()
    print(f"record\t{message.offset()}\t{'null' if value is None else value.decode()}", flush=True)
    count -= 1
    if count == 0:
        quiet_until = time.monotonic() + QUIET_S
consumer.close()
