"""A source that holds everything a mirror has to get right: written with a seed, small, by real producers and cleaners."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import create_topic, delete_records, read_partitions, set_topic, wait_for, wait_for_markers
from tests.support.one_batch import one_batch_producer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
IN_TXNS = len(CODECS)
"""The partition of the compacted topic that is written in transactions."""

CLEANED_SOON = {
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
    "max.compaction.lag.ms": "200",
    "delete.retention.ms": "600000",
}
CLEANED_NO_MORE = {"min.cleanable.dirty.ratio": "1.0", "max.compaction.lag.ms": str((1 << 63) - 1)}
SMALL_TARGET_BYTES = 20_000
YESTERDAY_MS = int(time.time() * 1000) - 86_400_000
DICE = random.Random(5)


def producer(bootstrap: str, topic: str, codec: str, **settings: Any) -> Producer:
    return one_batch_producer(bootstrap, topic, **{"compression.type": codec, **settings})


def write(writer: Producer, topic: str, keys: Iterable[int], partition: int = 0, *, value_bytes: int = 40) -> None:
    """One batch, with nulls, headers and timestamps that jump."""
    for n in keys:
        value = None if n % 13 == 7 else f"{n}:{DICE.randbytes(value_bytes // 2).hex()}"
        headers = [("codec", b"c"), ("none", None)] if n % 3 else None
        at_ms = YESTERDAY_MS + DICE.randint(-10_000, 10_000)
        writer.produce(topic, value, f"k{n}", partition=partition, headers=headers, timestamp=at_ms)
    assert writer.flush(60) == 0


def write_compacted(bootstrap: str, topic: str) -> None:
    """Holes within batches of every codec, and within and between transactions of which every third is aborted."""
    create_topic(bootstrap, topic, len(CODECS) + 1, settings={"cleanup.policy": "compact"})
    for partition, codec in enumerate(CODECS):
        writer = producer(bootstrap, topic, codec)
        write(writer, topic, range(150), partition)
        write(writer, topic, [n for n in range(150) if n % 7 in (0, 1, 4)], partition)
        write(writer, topic, range(140, 160), partition)
    in_txns = producer(bootstrap, topic, "lz4", **{"transactional.id": f"writer-of-{topic}"})
    in_txns.init_transactions(30)
    for number in range(6):
        in_txns.begin_transaction()
        write(in_txns, topic, range(number * 5, number * 5 + 40), IN_TXNS)
        (in_txns.abort_transaction if number % 3 == 1 else in_txns.commit_transaction)(30)
    wait_for_markers(bootstrap, topic)
    clean(bootstrap, topic, len(CODECS) + 1)


def clean(bootstrap: str, topic: str, partitions: int) -> None:
    """Until no key is there twice."""
    set_topic(bootstrap, topic, CLEANED_SOON)
    topic_partitions = [(topic, partition) for partition in range(partitions)]
    ticks = producer(bootstrap, topic, "none")

    def is_cleaned() -> bool:
        """Write a record of now, which ends the log segment before it, and return whether keys are unique."""
        for topic_partition in topic_partitions:
            ticks.produce(topic, "now", f"tick{time.time()}", partition=topic_partition[1])
        assert ticks.flush(30) == 0
        keys = [[record.key for record in records] for records in read_partitions(bootstrap, topic_partitions).values()]
        return all(len(set(key)) == len(key) for key in keys)

    wait_for("the cleaner of the source", is_cleaned)
    set_topic(bootstrap, topic, CLEANED_NO_MORE)


def clean_at_once(bootstrap: str) -> None:
    """Without this a cleaner that found nothing to do sleeps for 15 s."""
    change = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    client, broker = runs.admin(bootstrap), ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
    client.incremental_alter_configs([broker])[broker].result(30)


def write_cut(bootstrap: str, topic: str, cut_at: int) -> None:
    """One batch whose first `cut_at` records were deleted, and one behind it."""
    create_topic(bootstrap, topic)
    writer = producer(bootstrap, topic, "lz4")
    write(writer, topic, range(30))
    write(writer, topic, range(30, 40))
    delete_records(bootstrap, topic, before=cut_at)


def write_large(bootstrap: str, topic: str) -> None:
    """Write a batch above `SMALL_TARGET_BYTES`."""
    create_topic(bootstrap, topic)
    write(producer(bootstrap, topic, "snappy"), topic, range(100), value_bytes=2_000)


def write_stamped_by_the_broker(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, settings={"message.timestamp.type": "LogAppendTime"})
    write(producer(bootstrap, topic, "zstd"), topic, range(50))


class Writers:
    """Producers of every codec that take turns on the partitions of one topic, some of them in transactions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._topic, self._partitions = topic, partitions
        self._plain = [
            producer(bootstrap, topic, codec, **{"enable.idempotence": n % 2 == 0, "linger.ms": 50})
            for n, codec in enumerate(CODECS)
        ]
        self._in_txns = [
            producer(bootstrap, topic, codec, **{"transactional.id": f"{topic}-{codec}", "linger.ms": 0}) for codec in CODECS
        ]
        for writer in self._in_txns:
            writer.init_transactions(30)
        self._open: list[Producer] = []
        self._next_key = 0

    def steps(self, count: int) -> None:
        """Take `count` steps; end with every transaction over."""
        for _ in range(count):
            self._step()
        for begun in list(self._open):
            self._end(begun)

    def abort_many(self, count: int, partition: int) -> None:
        """Transactions of one record each, whose markers lie beside each other's records."""
        writer = self._in_txns[0]
        for _ in range(count):
            writer.begin_transaction()
            self._write(writer, partition, 1)
            writer.abort_transaction(30)

    def _step(self) -> None:
        choice = DICE.random()
        if choice < 0.3:
            self._write(DICE.choice(self._plain), DICE.randrange(self._partitions), DICE.randint(1, 12))
        elif choice < 0.5 and len(self._open) < len(self._in_txns):
            begun = DICE.choice([writer for writer in self._in_txns if writer not in self._open])
            begun.begin_transaction()
            self._open.append(begun)
        elif self._open and choice < 0.8:
            self._write(DICE.choice(self._open), DICE.randrange(self._partitions), DICE.randint(1, 12))
        elif self._open:
            self._end(DICE.choice(self._open))

    def _end(self, writer: Producer) -> None:
        self._open.remove(writer)
        (writer.abort_transaction if DICE.random() < 0.4 else writer.commit_transaction)(30)

    def _write(self, writer: Producer, partition: int, records: int) -> None:
        write(writer, self._topic, range(self._next_key, self._next_key + records), partition)
        self._next_key += records
