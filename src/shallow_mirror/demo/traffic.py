"""Driver: messy real traffic for a source cluster: all codecs, all kinds of producers, transactions that overlap.

Content, partition of each record and the fate of each transaction follow from the seed; where batches are cut does not.
"""

from __future__ import annotations

import base64
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from shallow_mirror.errors import MirrorError
from shallow_mirror.types import TopicPartition

TOPICS: Mapping[str, int] = {"orders.audit": 1, "orders.payments": 4, "orders.events": 12}
"""Partitions of each topic that is written."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_TIMESTAMP_MS = 1_714_521_600_000
"""2024-05-01: fixed, so that a seed gives the same records; retention by time is switched off for it."""

_ABORT_SHARE = 0.25
_CHUNK_RECORDS = (4, 60, 200, 500)
_CHUNKS_PER_TXN = 2
_WAIT_S = 60.0


class TrafficError(MirrorError):
    """The source did not accept a record or did not end a transaction: there is nothing to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraffic:
    """The records written. `visible_records`: those that a read_committed consumer sees."""

    topic: str
    partitions: int
    written_records: int
    visible_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    topics: tuple[TopicTraffic, ...]
    committed_txns: int
    aborted_txns: int

    @property
    def written_records(self) -> int:
        return sum(topic.written_records for topic in self.topics)

    @property
    def visible_records(self) -> int:
        return sum(topic.visible_records for topic in self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecord:
    """A record. `key` and `value` may be None (a tombstone), and a header's value too."""

    topic_partition: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class RecordMaker:
    """An endless supply of records; pure apart from the random numbers it is given."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._text = base64.b64encode(rng.randbytes(3 << 20))
        self._numbers = itertools.count()

    def chunk(self, count: int) -> Iterator[TrafficRecord]:
        """Yield records for a few partitions of one topic, as one application would write them."""
        topic = self._rng.choices(tuple(TOPICS), weights=(2, 3, 5))[0]
        partitions = self._rng.choices(range(TOPICS[topic]), k=self._rng.randint(1, 4))
        topic_partitions = [TopicPartition(topic, partition) for partition in partitions]
        return (self._record(self._rng.choice(topic_partitions)) for _ in range(count))

    def _record(self, topic_partition: TopicPartition) -> TrafficRecord:
        number, dice = next(self._numbers), self._rng.random()
        return TrafficRecord(
            topic_partition=topic_partition,
            key=None if dice < 0.15 else b"customer-%d" % (number % 977),
            value=self._value(number),
            headers=self._headers(number) if dice > 0.6 else (),
            timestamp_ms=FIRST_TIMESTAMP_MS + number * 5 + self._rng.randint(-2000, 2000),
        )

    def _value(self, number: int) -> bytes | None:
        dice = self._rng.random()
        if dice < 0.03:
            return None
        if dice < 0.035:
            return b""
        length, start = self._rng.randint(60, 500), self._rng.randrange(len(self._text) - 500)
        return b'{"order": %d, "state": "shipped", "note": "%s"}' % (number, self._text[start : start + length])

    def _headers(self, number: int) -> tuple[tuple[str, bytes | None], ...]:
        """Return headers: names may repeat, values may be empty or None, and all of it has to be copied, in order."""
        several = (
            ("trace", b"%08x" % (number * 2654435761 % 2**32)),
            ("hop", b"a"),
            ("hop", b"b"),
            ("empty", b""),
            ("none", None),
        )
        return several[: self._rng.randint(1, len(several))]


class _Application:
    """A producer with the records of its open transaction."""

    def __init__(self, bootstrap: str, name: str, codec: str, properties: Mapping[str, Any]) -> None:
        self.is_transactional = "transactional.id" in properties
        self.uncommitted: Counter[str] = Counter()
        self._failures: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "compression.type": codec,
                "linger.ms": 2,
                "log_level": 3,
                "delivery.report.only.error": True,
                "on_delivery": self._on_delivery,
                **properties,
            }
        )
        if self.is_transactional:
            self._producer.init_transactions(_WAIT_S)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(f"{message.topic()}-{message.partition()}: {error}")

    def begin(self) -> None:
        self._producer.begin_transaction()

    def write(self, records: Iterator[TrafficRecord]) -> None:
        """Write records and wait until all are acknowledged, so that the next application's records follow them."""
        for record in records:
            self._producer.produce(
                record.topic_partition.topic,
                partition=record.topic_partition.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp_ms,
            )
            self.uncommitted[record.topic_partition.topic] += 1
        unsent = self._producer.flush(_WAIT_S)
        if unsent or self._failures:
            raise TrafficError(f"the source did not take {unsent + len(self._failures)} records: {self._failures[:3]}")

    def end(self, commit: bool) -> Counter[str]:
        """End the transaction; return the records that became visible by it, per topic."""
        if self.is_transactional and commit:
            self._producer.commit_transaction(_WAIT_S)
        elif self.is_transactional:
            self._producer.abort_transaction(_WAIT_S)
        ended, self.uncommitted = self.uncommitted, Counter()
        return ended if commit else Counter()


def _applications(bootstrap: str) -> list[_Application]:
    """Return an application of each kind for each codec."""
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"acks": "all", "max.in.flight.requests.per.connection": 1, "batch.num.messages": 150},
        "idempotent": {"enable.idempotence": True, "batch.num.messages": 40},
        "transactional": {},
    }
    applications = []
    for kind, properties in kinds.items():
        for codec in CODECS:
            name = f"shallow-mirror-demo-{kind}-{codec}"
            own = {"transactional.id": name} if kind == "transactional" else {}
            # Plain producers repeat nothing either: one request in flight, acknowledged by all.
            applications.append(_Application(bootstrap, name, codec, {**properties, **own}))
    return applications


def create_source_topics(bootstrap: str) -> None:
    topics = [
        NewTopic(name, num_partitions=partitions, replication_factor=1, config={"retention.ms": "-1"})
        for name, partitions in TOPICS.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    for created in admin.create_topics(topics).values():
        created.result(_WAIT_S)


def write_traffic(bootstrap: str, *, records: int, seed: int, on_progress: Callable[[int], None]) -> TrafficReport:
    """Create the topics and write at least `records` records, those of aborted transactions included.

    `on_progress` gets the number written so far. All transactions are ended on return; raises TrafficError otherwise,
    and then some may stay open until the source times them out.
    """
    rng = random.Random(seed)
    try:
        create_source_topics(bootstrap)
        return _Writer(rng, RecordMaker(rng), _applications(bootstrap), on_progress).write(records)
    except KafkaException as error:
        raise TrafficError(f"writing to {bootstrap} failed: {error}") from error


class _Writer:
    """Rounds in which all transactions are open at once, and the other producers write in between."""

    def __init__(
        self, rng: random.Random, maker: RecordMaker, applications: Sequence[_Application], on_progress: Callable[[int], None]
    ) -> None:
        self._rng = rng
        self._maker = maker
        self._applications = applications
        self._on_progress = on_progress
        self._written: Counter[str] = Counter()
        self._visible: Counter[str] = Counter()
        self._txns: Counter[bool] = Counter()

    def write(self, records: int) -> TrafficReport:
        while self._written.total() < records:
            self._round(records)
        topics = tuple(
            TopicTraffic(
                topic=topic, partitions=partitions, written_records=self._written[topic], visible_records=self._visible[topic]
            )
            for topic, partitions in TOPICS.items()
        )
        return TrafficReport(topics=topics, committed_txns=self._txns[True], aborted_txns=self._txns[False])

    def _round(self, records: int) -> None:
        transactional = [application for application in self._applications if application.is_transactional]
        for application in transactional:
            application.begin()
        for _ in range(_CHUNKS_PER_TXN):
            for application in self._rng.sample(self._applications, len(self._applications)):
                self._write_chunk(application, records)
        for application in self._rng.sample(transactional, len(transactional)):
            is_commit = self._rng.random() >= _ABORT_SHARE
            self._txns[is_commit] += 1
            self._visible += application.end(is_commit)

    def _write_chunk(self, application: _Application, records: int) -> None:
        """Return the size of a burst, small enough that a round of a small demo does not write much more than requested."""
        most = max(4, records // 100)
        count = min(most, self._rng.choice(_CHUNK_RECORDS) * (2 if application.is_transactional else 1))
        before = application.uncommitted.copy()
        application.write(self._maker.chunk(count))
        self._written += application.uncommitted - before
        if not application.is_transactional:
            self._visible += application.end(True)
        self._on_progress(self._written.total())
