"""Applications that write to the source all the while, and remember what became of each record: ok, failed or unknown."""

from __future__ import annotations

import enum
import itertools
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from shallow_mirror.demo.history import record_digest
from shallow_mirror.types import TopicPartition

_CREATE_TIME = 1
_PATIENCE_S = 30.0
_ABORT_SHARE = 0.3
_BURST_RECORDS = 20
_MAX_DEBT_S = 20.0
_MIN_PAUSE_S = 0.02
"""In which `take` gets the lock from a writer that is behind its rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLoad:
    """What all writers write together. A value is up to `random_bytes` random bytes, repeated up to `repeats` times.

    `bytes_per_s` counts keys and values before compression, as a mean over time: what an outage of the source delayed is
    written after it, up to 20 seconds' worth.
    """

    bytes_per_s: float
    random_bytes: int
    repeats: int

    @property
    def mean_value_bytes(self) -> float:
        return self.random_bytes / 2 * (1 + self.repeats) / 2


LIGHT = WriteLoad(bytes_per_s=60_000, random_bytes=60, repeats=8)
"""About 400 records per second."""


class Outcome(enum.StrEnum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One record and what its writer knows. `offset` is None where the source did not name one."""

    topic_partition: TopicPartition
    offset: int | None
    digest: bytes
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one application writes."""

    name: str
    properties: Mapping[str, Any]

    @property
    def is_transactional(self) -> bool:
        return "transactional.id" in self.properties


def kinds(prefix: str) -> tuple[Kind, ...]:
    """Plain, idempotent and transactional ones, over all codecs. `prefix` keeps their transactional ids apart."""
    plain, idempotent = {"acks": "all", "max.in.flight.requests.per.connection": 1}, {"enable.idempotence": True}
    codecs_of: Sequence[tuple[str, Mapping[str, Any], tuple[str, ...]]] = (
        ("plain", plain, ("none", "gzip")),
        ("idempotent", idempotent, ("snappy", "zstd")),
        ("transactional", {}, ("lz4", "zstd", "none")),
    )
    made = []
    for kind, properties, codecs in codecs_of:
        for codec in codecs:
            name = f"{kind}-{codec}"
            own = {"transactional.id": f"{prefix}-{name}"} if kind == "transactional" else {}
            made.append(Kind(name=name, properties={**properties, **own, "compression.type": codec}))
    return tuple(made)


class Writer:
    """One application in a thread of its own: bursts of records, each flushed; of a transaction, one or several."""

    def __init__(
        self, bootstrap: str, kind: Kind, topic_partitions: Sequence[TopicPartition], *, load: WriteLoad, seed: int
    ) -> None:
        self._bootstrap, self._kind, self._topic_partitions, self._load = bootstrap, kind, tuple(topic_partitions), load
        self._rng = random.Random(f"{seed}-{kind.name}")
        self._pause_s = _BURST_RECORDS * load.mean_value_bytes / load.bytes_per_s
        self._ahead_s = 0.0
        """What was written since the start takes so much longer at `bytes_per_s` than it took."""
        self.acknowledged_bytes = 0
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        """PausedProcess while records are written whose outcome is not yet known."""
        self._known: list[Written] = []
        self._reported: list[Written] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=kind.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> list[Written]:
        """Return the outcomes since the last call. Waits until nothing that was written is still without an outcome."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            taken, self._known = self._known, []
            return taken

    def _run(self) -> None:
        try:
            producer = self._new_producer()
            looked_at = time.monotonic()
            while not self._stop.wait(max(_MIN_PAUSE_S, self._ahead_s * self._rng.uniform(0.5, 1.5))):
                with self._lock:
                    if not self._write_and_conclude(producer):
                        producer = self._new_producer()
                now = time.monotonic()
                self._ahead_s = max(-_MAX_DEBT_S, self._ahead_s - (now - looked_at))
                looked_at = now
        except BaseException as error:  # noqa: BLE001 - raised again by `take`
            self.failure = error

    def _new_producer(self) -> Producer:
        while True:
            producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "client.id": self._kind.name,
                    "linger.ms": 2,
                    "log_level": 0,
                    "message.timeout.ms": 20_000,
                    "transaction.timeout.ms": 20_000,
                    **self._kind.properties,
                }
            )
            if not self._kind.is_transactional:
                return producer
            try:
                producer.init_transactions(_PATIENCE_S)
            except KafkaException:
                if self._stop.is_set():
                    return producer
                continue
            return producer

    def _write_and_conclude(self, producer: Producer) -> bool:
        """Return False when the producer cannot be used any more."""
        self._reported = []
        if not self._kind.is_transactional:
            self._burst(producer)
            self._known += self._reported
            return True
        outcome = self._transaction(producer)
        self._known += [replace(written_record, outcome=outcome) for written_record in self._reported]
        return outcome is not Outcome.UNKNOWN

    def _transaction(self, producer: Producer) -> Outcome:
        try:
            producer.begin_transaction()
            for _ in range(self._rng.randint(1, 3)):
                self._burst(producer)
                self._stop.wait(self._rng.uniform(0, self._pause_s))
            is_commit = self._rng.random() >= _ABORT_SHARE and all(
                written_record.outcome is Outcome.OK for written_record in self._reported
            )
            if is_commit:
                producer.commit_transaction(_PATIENCE_S)
            else:
                producer.abort_transaction(_PATIENCE_S)
        except KafkaException:
            return Outcome.UNKNOWN
        return Outcome.OK if is_commit else Outcome.FAILED

    def _burst(self, producer: Producer) -> None:
        topic_partitions = self._rng.choices(self._topic_partitions, k=self._rng.randint(1, 3))
        for _ in range(self._rng.randint(1, 2 * _BURST_RECORDS)):
            self._produce(producer, self._rng.choice(topic_partitions))
        while producer.flush(1.0):
            """Every record is reported in the end: message.timeout.ms bounds it."""

    def _produce(self, producer: Producer, topic_partition: TopicPartition) -> None:
        number, timestamp_ms = next(self._numbers), int(time.time() * 1000)
        key = b"%s-%d" % (self._kind.name.encode(), number)
        value = None if number % 50 == 0 else self._value()
        headers: list[tuple[str, bytes | None]] = [("writer", self._kind.name.encode()), ("none", None)][: number % 3]
        digest = record_digest(key, value, headers, _CREATE_TIME, timestamp_ms)
        size_bytes = len(key) + len(value or b"")
        self._ahead_s += size_bytes / self._load.bytes_per_s

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged_bytes += size_bytes
                self._report(topic_partition, message.offset(), digest, Outcome.OK)
            else:
                self._report(topic_partition, None, digest, Outcome.UNKNOWN)

        producer.produce(
            topic_partition.topic,
            partition=topic_partition.partition,
            key=key,
            value=value,
            headers=headers,
            timestamp=timestamp_ms,
            on_delivery=report,
        )

    def _value(self) -> bytes:
        return self._rng.randbytes(self._rng.randint(0, self._load.random_bytes)) * self._rng.randint(1, self._load.repeats)

    def _report(self, topic_partition: TopicPartition, offset: int | None, digest: bytes, outcome: Outcome) -> None:
        self._reported.append(Written(topic_partition=topic_partition, offset=offset, digest=digest, outcome=outcome))


class Writers:
    """One of each kind; context manager. Each writes an equal share of `load`."""

    def __init__(
        self, bootstrap: str, topic_partitions: Sequence[TopicPartition], *, load: WriteLoad = LIGHT, seed: int = 0
    ) -> None:
        chosen = kinds(f"writer-{seed}")
        share = replace(load, bytes_per_s=load.bytes_per_s / len(chosen))
        self._writers = [Writer(bootstrap, kind, topic_partitions, load=share, seed=seed) for kind in chosen]

    @property
    def acknowledged_bytes(self) -> int:
        """Keys and values of all records that the source has acknowledged since the start, committed or not."""
        return sum(writer.acknowledged_bytes for writer in self._writers)

    def __enter__(self) -> Self:
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for writer in self._writers:
            writer.stop()

    def take(self) -> list[Written]:
        """Return the outcomes since the last call, of all writers. Raises what ended a writer."""
        return [written for writer in self._writers for written in writer.take()]
