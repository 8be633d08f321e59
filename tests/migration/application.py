"""Writers and consumers of a topic that move between two clusters when somebody stops and starts them, and what they saw."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

PATIENCE_S = 30.0
WRITERS = ("plain", "idempotent", "transactional")
PAUSE_S = 0.02


class Writer:
    """Writes unique values until it is stopped; `written` are those that readers of committed records see."""

    def __init__(self, kind: str, topic: str, partitions: int) -> None:
        self._kind = kind
        self._topic = topic
        self._partitions = partitions
        self._number = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.written: list[str] = []
        self.failure: BaseException | None = None
        self.first_at_s = self.last_at_s = 0.0
        """When the first and the last record since the last start were acknowledged."""

    def start(self, bootstrap: str) -> None:
        self._stop.clear()
        self.first_at_s = 0.0
        self._thread = threading.Thread(target=self._run, args=(bootstrap,), name=self._kind, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), f"the {self._kind} writer did not end"
        if self.failure is not None:
            raise self.failure

    def _run(self, bootstrap: str) -> None:
        try:
            settings: dict[str, object] = {"bootstrap.servers": bootstrap, "linger.ms": 2, "log_level": 0}
            if self._kind == "transactional":
                settings["transactional.id"] = f"{self._topic}-writer"
            else:
                settings["enable.idempotence"] = self._kind == "idempotent"
            producer = Producer(settings)
            if self._kind == "transactional":
                producer.init_transactions(PATIENCE_S)
            while not self._stop.wait(PAUSE_S):
                self._burst(producer)
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.failure = error

    def _burst(self, producer: Producer) -> None:
        values = []
        if self._kind == "transactional":
            producer.begin_transaction()
        for _ in range(5):
            self._number += 1
            values.append(f"{self._kind}-{self._number}")
            producer.produce(self._topic, values[-1], partition=self._number % self._partitions)
        if self._kind != "transactional":
            assert producer.flush(PATIENCE_S) == 0, "records were not acknowledged"
        elif self._number % 4 == 0:
            assert producer.flush(PATIENCE_S) == 0
            producer.abort_transaction(PATIENCE_S)
            return
        else:
            producer.commit_transaction(PATIENCE_S)
        self.written += values
        self.last_at_s = time.monotonic()
        self.first_at_s = self.first_at_s or self.last_at_s


class GroupReader:
    """A consumer group with one member that commits what it has read now and then, and when it is stopped."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self._topic = topic
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.read: list[str] = []
        self.failure: BaseException | None = None

    def start(self, bootstrap: str) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(bootstrap,), name=self.group, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), f"group {self.group} did not end"
        if self.failure is not None:
            raise self.failure

    def _run(self, bootstrap: str) -> None:
        try:
            consumer = Consumer(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": self.group,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )
            try:
                consumer.subscribe([self._topic])
                while not self._stop.is_set():
                    for message in consumer.consume(200, 0.2):
                        if message.error():
                            raise KafkaException(message.error())
                        self.read.append(message.value().decode())
                self._commit(consumer)
            finally:
                consumer.close()
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.failure = error

    @staticmethod
    def _commit(consumer: Consumer) -> None:
        assigned: Sequence[TopicPartition] = consumer.assignment()
        positions = [position for position in consumer.position(assigned) if position.offset >= 0]
        if positions:
            consumer.commit(offsets=positions, asynchronous=False)


class Application:
    """Three writers and three groups; context manager: whatever runs is stopped at the end."""

    def __init__(self, topic: str, partitions: int, groups: Sequence[str]) -> None:
        self.writers = [Writer(kind, topic, partitions) for kind in WRITERS]
        self.groups = [GroupReader(group, topic) for group in groups]
        self.stopped_s: list[float] = []
        """How long no writer wrote, at each move."""
        self._stopped_at_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop_writers()
        self.stop_groups()

    def start(self, bootstrap: str) -> None:
        for writer in self.writers:
            writer.start(bootstrap)
        for group in self.groups:
            group.start(bootstrap)

    def stop_writers(self) -> None:
        for writer in self.writers:
            writer.stop()
        self._stopped_at_s = max((writer.last_at_s for writer in self.writers), default=0.0)

    def stop_groups(self) -> None:
        for group in self.groups:
            group.stop()

    def await_writes(self) -> None:
        """Until every writer has written since its start; the pause before that is in `stopped_s`."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not all(writer.first_at_s for writer in self.writers):
            assert time.monotonic() < give_up_at, "the writers did not write again"
            time.sleep(0.01)
        if self._stopped_at_s:
            self.stopped_s.append(min(writer.first_at_s for writer in self.writers) - self._stopped_at_s)

    @property
    def written(self) -> Counter[str]:
        return Counter(value for writer in self.writers for value in writer.written)

    def await_everything_read(self) -> None:
        """With stopped writers: until every group has read as many records as were written, or gives up."""
        wanted, give_up_at = sum(self.written.values()), time.monotonic() + PATIENCE_S
        while any(len(group.read) < wanted for group in self.groups) and time.monotonic() < give_up_at:
            time.sleep(0.05)

    def differences(self) -> dict[str, tuple[list[str], list[str]]]:
        """Return the lost and the repeated records of each group that has any."""
        written = self.written
        found = {}
        for group in self.groups:
            read = Counter(group.read)
            lost, repeated = sorted((written - read).elements()), sorted((read - written).elements())
            if lost or repeated:
                found[group.group] = (lost[:5], repeated[:5])
        return found
