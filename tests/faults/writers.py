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


class Outcome(enum.StrEnum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One record and what its writer knows. `offset` is None where the source did not name one."""

    place: TopicPartition
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

    def __init__(self, bootstrap: str, kind: Kind, places: Sequence[TopicPartition], *, records_per_s: float, seed: int) -> None:
        self._bootstrap, self._kind, self._places = bootstrap, kind, tuple(places)
        self._rng = random.Random(f"{seed}-{kind.name}")
        self._pause_s = _BURST_RECORDS / records_per_s
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        """Held while records are written whose outcome is not yet known."""
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
        """What became known since the last call. Waits until nothing that was written is still without an outcome."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            taken, self._known = self._known, []
            return taken

    def _run(self) -> None:
        try:
            producer = self._new_producer()
            while not self._stop.wait(self._pause_s * self._rng.uniform(0.5, 1.5)):
                with self._lock:
                    if not self._write_and_conclude(producer):
                        producer = self._new_producer()
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
        """False when the producer cannot be used any more."""
        self._reported = []
        if not self._kind.is_transactional:
            self._burst(producer)
            self._known += self._reported
            return True
        outcome = self._transaction(producer)
        self._known += [replace(one, outcome=outcome) for one in self._reported]
        return outcome is not Outcome.UNKNOWN

    def _transaction(self, producer: Producer) -> Outcome:
        try:
            producer.begin_transaction()
            for _ in range(self._rng.randint(1, 3)):
                self._burst(producer)
                self._stop.wait(self._rng.uniform(0, self._pause_s))
            is_commit = self._rng.random() >= _ABORT_SHARE and all(one.outcome is Outcome.OK for one in self._reported)
            if is_commit:
                producer.commit_transaction(_PATIENCE_S)
            else:
                producer.abort_transaction(_PATIENCE_S)
        except KafkaException:
            return Outcome.UNKNOWN
        return Outcome.OK if is_commit else Outcome.FAILED

    def _burst(self, producer: Producer) -> None:
        places = self._rng.choices(self._places, k=self._rng.randint(1, 3))
        for _ in range(self._rng.randint(1, 2 * _BURST_RECORDS)):
            self._produce(producer, self._rng.choice(places))
        while producer.flush(1.0):
            """Every record is reported in the end: message.timeout.ms bounds it."""

    def _produce(self, producer: Producer, place: TopicPartition) -> None:
        number, timestamp_ms = next(self._numbers), int(time.time() * 1000)
        key = b"%s-%d" % (self._kind.name.encode(), number)
        value = None if number % 50 == 0 else self._rng.randbytes(self._rng.randint(0, 60)) * self._rng.randint(1, 8)
        headers: list[tuple[str, bytes | None]] = [("writer", self._kind.name.encode()), ("none", None)][: number % 3]
        digest = record_digest(key, value, headers, _CREATE_TIME, timestamp_ms)

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self._report(place, message.offset(), digest, Outcome.OK)
            else:
                self._report(place, None, digest, Outcome.UNKNOWN)

        producer.produce(
            place.topic,
            partition=place.partition,
            key=key,
            value=value,
            headers=headers,
            timestamp=timestamp_ms,
            on_delivery=report,
        )

    def _report(self, place: TopicPartition, offset: int | None, digest: bytes, outcome: Outcome) -> None:
        self._reported.append(Written(place=place, offset=offset, digest=digest, outcome=outcome))


class Writers:
    """One of each kind; context manager. `records_per_s` is about what all of them write together."""

    def __init__(self, bootstrap: str, places: Sequence[TopicPartition], *, records_per_s: float = 400, seed: int = 0) -> None:
        chosen = kinds(f"writer-{seed}")
        self._writers = [Writer(bootstrap, kind, places, records_per_s=records_per_s / len(chosen), seed=seed) for kind in chosen]

    def __enter__(self) -> Self:
        for one in self._writers:
            one.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        for one in self._writers:
            one.stop()

    def take(self) -> list[Written]:
        """What became known since the last call, of all writers. Raises what ended a writer."""
        return [written for one in self._writers for written in one.take()]
