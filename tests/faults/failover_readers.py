"""A process of consumer groups, each of one member that commits now and then. Arguments: BOOTSTRAP TOPIC FOLDER GROUP….

Each group appends the values that it reads to a file of its name in FOLDER, with the time on the monotonic clock of the machine.
SIGTERM lets every group commit what it has read, and leave. librdkafka waits for a cluster that is dead when a consumer is closed:
SIGKILL ends the process then.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer

COMMIT_EVERY_S = 0.2


def read_group(bootstrap: str, topic: str, folder: Path, group: str, stop: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    committed_at_s = time.monotonic()
    with (folder / group).open("a", encoding="utf-8") as log:
        while not stop.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    log.write(f"{time.monotonic()} {message.value().decode()}\n")
            log.flush()
            if time.monotonic() - committed_at_s >= COMMIT_EVERY_S:
                commit(consumer, asynchronous=True)
                committed_at_s = time.monotonic()
    commit(consumer, asynchronous=False)
    consumer.close()


def commit(consumer: Consumer, *, asynchronous: bool) -> None:
    positions = [position for position in consumer.position(consumer.assignment()) if position.offset >= 0]
    if positions:
        consumer.commit(offsets=positions, asynchronous=asynchronous)


def main(bootstrap: str, topic: str, folder: str, *groups: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    threads = [
        threading.Thread(target=read_group, args=(bootstrap, topic, Path(folder), group, stop), name=group) for group in groups
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
