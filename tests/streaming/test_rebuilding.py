"""What a source holds that cannot be copied as it is, on real clusters: record by record and offset by offset."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from tests import mirror_runs as runs
from tests.mirror_runs import ReadRecord, catch_up, config, create_topic, delete_records, read_places, set_topic, wait_for

from shallow_mirror.audit import verify
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.config import MirrorConfig

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400)]

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


def producer(bootstrap: str, codec: str, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50, "log_level": 0, **settings})


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
        writer = producer(bootstrap, codec)
        write(writer, topic, range(150), partition)
        write(writer, topic, [n for n in range(150) if n % 7 in (0, 1, 4)], partition)
        write(writer, topic, range(140, 160), partition)
    in_txns = producer(bootstrap, "lz4", **{"transactional.id": f"writer-of-{topic}"})
    in_txns.init_transactions(30)
    for number in range(6):
        in_txns.begin_transaction()
        write(in_txns, topic, range(number * 5, number * 5 + 40), IN_TXNS)
        (in_txns.abort_transaction if number % 3 == 1 else in_txns.commit_transaction)(30)
    set_topic(bootstrap, topic, CLEANED_SOON)
    places = [(topic, partition) for partition in range(len(CODECS) + 1)]
    ticks = producer(bootstrap, "none")

    def is_cleaned() -> bool:
        """No key is there twice. A log segment ends by the time of records: a record of now ends the one before."""
        for place in places:
            ticks.produce(topic, "now", f"tick{time.time()}", partition=place[1])
        assert ticks.flush(30) == 0
        keys = [[one.key for one in records] for records in read_places(bootstrap, places).values()]
        return all(len(set(one)) == len(one) for one in keys)

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
    writer = producer(bootstrap, "lz4")
    write(writer, topic, range(30))
    write(writer, topic, range(30, 40))
    delete_records(bootstrap, topic, before=cut_at)


def contents(records: list[ReadRecord]) -> list[tuple[Any, ...]]:
    return [one[1:] for one in records]


def assert_every_offset_is_translated(
    known: OffsetMap, place: tuple[str, int], originals: list[ReadRecord], copies: list[ReadRecord]
) -> None:
    """To the record's own copy, or to the next one's where it has none."""
    target_of = {original.offset: copy.offset for original, copy in zip(originals, copies, strict=True)}
    next_target = -1
    for offset in range(originals[-1].offset, originals[0].offset - 1, -1):
        next_target = target_of.get(offset, next_target)
        translated = known.translate(*place, offset)
        assert (translated.target_offset, translated.exact) == (next_target, offset in target_of), (place, offset)


def rebuilt_places(settings: MirrorConfig) -> set[tuple[str, int]]:
    rows = OffsetMap.open(settings.tables).settled_rows().to_pylist()
    return {(row["source_topic"], row["source_partition"]) for row in rows if row["rebuilt_batch_count"]}


def test_holes_cut_batches_append_times_and_large_batches_are_rebuilt_and_equal_record_by_record(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target, name = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name[-60:]
    compacted, cut, stamped, large = (f"{name}.{kind}" for kind in ("compacted", "cut", "stamped", "large"))
    clean_at_once(source)
    write_compacted(source, compacted)
    write_cut(source, cut, cut_at=17)
    create_topic(source, stamped, settings={"message.timestamp.type": "LogAppendTime"})
    write(producer(source, "zstd"), stamped, range(50))
    create_topic(source, large)
    write(producer(source, "snappy"), large, range(100), value_bytes=2_000)
    for copy in (large, f"east.{large}"):
        create_topic(target, copy, settings={"max.message.bytes": str(SMALL_TARGET_BYTES)})
    places = [(compacted, partition) for partition in range(len(CODECS) + 1)] + [(cut, 0), (stamped, 0), (large, 0)]
    originals = read_places(source, places)
    for transfer, target_name in (("direct", "{topic}"), ("through-spark", "{source}.{topic}")):
        changes = {"mirror": f"{transfer}-{name}", "topics": {"target_name": target_name}, "read": {"transfer": transfer}}
        settings = config(tmp_path / transfer, source, target, [f"{name}.*"], **changes)
        catch_up(settings, spark)
        known = OffsetMap.open(settings.tables)
        copies = read_places(target, [(target_name.format(source="east", topic=topic), partition) for topic, partition in places])
        for place, copy in zip(places, copies.values(), strict=True):
            assert contents(copy) == contents(originals[place]), (transfer, place)
            assert_every_offset_is_translated(known, place, originals[place], copy)
        assert rebuilt_places(settings) == set(places)
        report = verify(settings)
        assert report.is_equal, report.sentences()
        assert report.record_count == sum(map(len, originals.values()))
