"""Clients of `benchmarks/broken_partition.py`: records that hold the time they were sent at, and when they arrive."""

from __future__ import annotations

import struct
import threading
import time

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition as ClientPartition,
)

from benchmarks.arrivals import Arrival

TOPIC = "broken-partition"
PLAIN_TOPIC = "plain-transactions"
_CLIENT = {"log_level": 0, "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.fast.interval.ms": 250}
_RECORD = struct.Struct(">dI")
_FETCH_WAIT_MS = 50
_TRANSACTION_EVERY_S = 0.5
TIMEOUT_S = 30.0


class Sender(threading.Thread):
    """Writes the time and the number of the record into each partition in turn, until `stop`."""

    def __init__(self, bootstrap: str, partitions: int, every_ms: float) -> None:
        super().__init__(name="sender", daemon=True)
        # Records wait for their partition without limit: each is written once, in order.
        settings = {
            "bootstrap.servers": bootstrap,
            **_CLIENT,
            "linger.ms": 0,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "retry.backoff.max.ms": 500,
        }
        self._others, self._breaking = Producer(settings), Producer(settings)
        self._partitions, self._every_s = partitions, every_ms / 1000
        self._over = threading.Event()
        self._error: KafkaError | None = None
        self.sent = dict.fromkeys(range(partitions), 0)

    def run(self) -> None:
        turn = 0
        while not self._over.wait(self._every_s):
            partition = turn % self._partitions
            producer = self._breaking if partition == self._partitions - 1 else self._others
            value = _RECORD.pack(time.time(), self.sent[partition])
            producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            self.sent[partition] += 1
            self._others.poll(0)
            self._breaking.poll(0)
            turn += 1

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._error = self._error or error

    def stop(self) -> None:
        """Return when every record is acknowledged. Raises KafkaException for one that was not, TimeoutError."""
        self._over.set()
        self.join()
        for producer in (self._others, self._breaking):
            if producer.flush(TIMEOUT_S):
                raise TimeoutError(f"records were not acknowledged within {TIMEOUT_S:.0f} s")
        if self._error is not None:
            raise KafkaException(self._error)


class Receiver(threading.Thread):
    """Reads all partitions of the target with read_committed, until `stop`."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        super().__init__(name="receiver", daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                **_CLIENT,
                "group.id": TOPIC,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            }
        )
        self._consumer.assign([ClientPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(partitions)])
        self._over = threading.Event()
        self._error: KafkaError | None = None
        self._arrivals: list[Arrival] = []

    def run(self) -> None:
        while not self._over.is_set():
            record = self._consumer.poll(0.2)
            if record is None:
                continue
            error = record.error()
            if error is None:
                sent_at, number = _RECORD.unpack(record.value())
                self._arrivals.append(Arrival(record.partition(), number, sent_at, time.time()))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._error = error  # every other error passes when the partition is back
        self._consumer.close()

    def arrivals(self) -> list[Arrival]:
        """Return what has arrived so far, as it came. Raises KafkaException where a log does not hold the offset that is read."""
        if self._error is not None:
            raise KafkaException(self._error)
        return list(self._arrivals)

    def stop(self) -> None:
        self._over.set()
        self.join()


class PlainTransactions(threading.Thread):
    """Commits small transactions of librdkafka's producer at the target, in a partition that does not break, until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="transactions", daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, **_CLIENT, "transactional.id": PLAIN_TOPIC, "linger.ms": 0})
        self._over = threading.Event()
        self._error: KafkaException | None = None
        self.done: list[Arrival] = []
        """As a record that was sent when its transaction began and arrived when that was committed."""

    def run(self) -> None:
        try:
            self._producer.init_transactions(TIMEOUT_S)
            while not self._over.wait(_TRANSACTION_EVERY_S):
                began_at = time.time()
                self._producer.begin_transaction()
                self._producer.produce(PLAIN_TOPIC, b"", partition=0)
                self._producer.commit_transaction()
                self.done.append(Arrival(0, len(self.done), began_at, time.time()))
        except KafkaException as error:
            self._error = error

    def stop(self) -> None:
        """Raise KafkaException where a transaction failed."""
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error
