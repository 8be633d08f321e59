"""Reads a topic with kafka-python: BOOTSTRAP TOPIC START COUNT."""

import sys
import time

import kafka
from kafka import KafkaConsumer, TopicPartition

QUIET_S = 3.0

bootstrap, topic, start, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print(f"version\t{kafka.__version__}", flush=True)
consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
partition = TopicPartition(topic, 0)
consumer.assign([partition])
consumer.seek(partition, start)
quiet_until = float("inf")
while time.monotonic() < quiet_until:
    for record in consumer.poll(timeout_ms=200).get(partition, []):
        print(f"record\t{record.offset}\t{'null' if record.value is None else record.value.decode()}", flush=True)
        count -= 1
        if count == 0:
            quiet_until = time.monotonic() + QUIET_S
consumer.close()
