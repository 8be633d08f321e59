"""Reads a topic with aiokafka: BOOTSTRAP TOPIC START COUNT."""

import asyncio
import sys
import time

import aiokafka
from aiokafka import AIOKafkaConsumer, TopicPartition

QUIET_S = 3.0


async def read(bootstrap: str, topic: str, start: int, count: int) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, start)
    quiet_until = float("inf")
    while time.monotonic() < quiet_until:
        for record in (await consumer.getmany(timeout_ms=200)).get(partition, []):
            print(f"record\t{record.offset}\t{'null' if record.value is None else record.value.decode()}", flush=True)
            count -= 1
            if count == 0:
                quiet_until = time.monotonic() + QUIET_S
    await consumer.stop()


print(f"version\t{aiokafka.__version__}", flush=True)
asyncio.run(read(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
