"""Real clusters, a real mirror: what it copied is equal, and damage on either disk, in the map or by others is found."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from tests.conftest import TwoClusters
from tests.support.exit_codes import exit_code
from tests.support.mirror_runs import (
    conf_file,
    create_topic,
    delete_records,
    positions,
    read_partitions,
    read_values,
    set_topic,
    wait_for,
    wait_for_markers,
    wait_for_run,
    write,
)
from tests.support.one_batch import one_batch_producer
from tests.support.record_batches import message
from tests.support.record_encoders import ENCODERS
from tests.verify.log_files import LogFile, stopped
from tests.verify.mirror_main import catch_up, mirror
from tests.verify.mirrored import at, changed, flipped

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.config import MirrorConfig
from shallow_mirror.verify import Unchecked, VerifyReport, verify_mirror
from shallow_mirror.wire import LOG_APPEND_TIME_BIT

pytestmark = pytest.mark.brokers

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TODAY_MS = int(time.time() * 1000)
BASE_TIMESTAMP_POS, MAX_TIMESTAMP_POS = 27, 35
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
    "max.compaction.lag.ms": "200",
}


def _old_messages(offsets: Iterable[int], magic: int, base: int = 0) -> list[bytes]:
    return [
        message(n - base, b"k%d" % n, None if n % 9 == 4 else b"value %d " % n * 9, magic=magic, timestamp=TODAY_MS + n)
        for n in offsets
    ]


def _old_set(codec: str, offsets: Sequence[int], magic: int, attributes: int = 0) -> bytes:
    number, encode = ENCODERS[codec]
    inner = b"".join(_old_messages(offsets, magic, base=offsets[0] if magic else 0))
    return message(offsets[-1], None, encode(inner), magic=magic, timestamp=TODAY_MS + 5_000, attributes=attributes | number)


OLD_LOGS = (
    _old_messages(range(0, 40, 2), 0),
    [_old_set("gzip", range(10), 1), _old_set("snappy of Java", range(12, 52, 4), 1), _old_set("lz4", range(60, 70), 1)],
    [_old_set("gzip", range(10), 0), _old_set("snappy of librdkafka", range(12, 52, 4), 0), *_old_messages(range(60, 70), 1)],
    [_old_set("gzip", range(10), 1, attributes=LOG_APPEND_TIME_BIT)],
)


@pytest.fixture
def clusters(stoppable_clusters: TwoClusters) -> TwoClusters:
    return stoppable_clusters


def conf_of(folder: Path, clusters: TwoClusters, *topics: str) -> Path:
    return conf_file(folder, clusters.source.bootstrap, clusters.target.bootstrap, list(topics))


def mirrored(folder: Path, clusters: TwoClusters, *topics: str) -> MirrorConfig:
    """Return the settings of a mirror that has caught up."""
    conf = conf_of(folder, clusters, *topics)
    catch_up(conf)
    return MirrorConfig.load(conf)


def produce(bootstrap: str, topic: str, codec: str, records: int, *, partition: int = 0, txn_id: str | None = None) -> None:
    """With keys, headers and nulls; in transactions, of which every second is aborted, where there is a `txn_id`."""
    in_txns = {} if txn_id is None else {"transactional.id": txn_id}
    producer = one_batch_producer(bootstrap, topic, **{"compression.type": codec}, **in_txns)
    if txn_id is not None:
        producer.init_transactions(30)
    for part in range(4):
        if txn_id is not None:
            producer.begin_transaction()
        for n in range(records // 4):
            value = None if n % 17 == 0 else f"value {part} {n} ".encode() * 9
            producer.produce(topic, value, f"k{n}", partition=partition, headers=[("h", b"x"), ("none", None)])
        assert producer.flush(30) == 0
        if txn_id is not None:
            (producer.abort_transaction if part % 2 else producer.commit_transaction)(30)
            wait_for_markers(bootstrap, topic)


def kinds(report: VerifyReport) -> list[tuple[str, int, int]]:
    """(kind, partition, first source offset; -1 where the source has no part in it)."""
    return sorted(
        (difference.kind.value, difference.source.partition, -1 if difference.source_start is None else difference.source_start)
        for difference in report.differences
    )


def test_topics_of_every_codec_and_with_transactions_are_equal_by_batches_and_by_records(
    clusters: TwoClusters, tmp_path: Path, topic_name: str
) -> None:
    source = clusters.source.bootstrap
    for codec in CODECS:
        create_topic(source, f"{topic_name}-{codec}", 2)
        produce(source, f"{topic_name}-{codec}", codec, 400)
        produce(source, f"{topic_name}-{codec}", codec, 400, partition=1, txn_id=f"writer-{codec}")
    settings = mirrored(tmp_path, clusters, f"{topic_name}-.*")
    for is_deep in (False, True):
        report = verify_mirror(settings, is_deep=is_deep)
        assert report.is_equal, report.sentences()
        assert (report.partition_count, report.record_count, report.unchecked) == (10, 5 * (400 + 200), {})
        assert (report.batch_count == 0, report.opened_batch_count == 0) == (is_deep, not is_deep)
        again = verify_mirror(settings, is_deep=is_deep, range_bytes=1)
        assert again.partitions == report.partitions, "also the digests, however the verification is divided"
    assert verify_mirror(settings, topics=[f"{topic_name}-zstd"]).record_count == 600
    assert len({partition.digest for partition in report.partitions}) == 10


def test_a_mirror_that_runs_meanwhile_makes_no_difference(clusters: TwoClusters, tmp_path: Path, topic_name: str) -> None:
    create_topic(clusters.source.bootstrap, topic_name)
    conf = conf_of(tmp_path, clusters, topic_name)
    settings, record_counts = MirrorConfig.load(conf), [0]
    write(clusters.source.bootstrap, topic_name, ["first"])
    with mirror(conf) as running:
        wait_for_run(running, "the first record", lambda: positions(settings).get((topic_name, 0), 0) > 0)
        for n in range(8):
            write(clusters.source.bootstrap, topic_name, [f"{n}-{i}" for i in range(20)])
            report = verify_mirror(settings)
            assert report.is_equal, report.sentences()
            record_counts.append(report.record_count)
        wait_for_run(
            running,
            "the last record",
            lambda: positions(settings)[topic_name, 0] > 160 and verify_mirror(settings).record_count == 161,
        )
    assert record_counts == sorted(record_counts)


def _swap(log: LogFile, first: int, second: int) -> None:
    first_raw, other = log.batches[first], log.batches[second]
    assert len(first_raw) == len(other)
    bases = log.header(first).base_offset, log.header(second).base_offset
    log.batches[first], log.batches[second] = at(other, bases[0]), at(first_raw, bases[1])


def test_damage_in_the_log_files_of_either_cluster_is_found(clusters: TwoClusters, tmp_path: Path, topic_name: str) -> None:
    source = clusters.source.bootstrap
    create_topic(source, topic_name, 8)
    for partition in range(8):
        for n in range(3):
            write(source, topic_name, [f"record {partition} {n} {i}" for i in range(5)], partition)
    settings = mirrored(tmp_path, clusters, topic_name)
    assert verify_mirror(settings).record_count == 120
    with stopped(clusters.source, clusters.target):
        logs = [LogFile(clusters.target, topic_name, partition) for partition in range(6)]
        data = [log.data_positions() for log in logs]
        assert [len(raw) for raw in data] == [3] * 6
        second = [log.batches[topic_partitions[1]] for log, topic_partitions in zip(logs, data, strict=True)]
        logs[0].batches[data[0][1]] = flipped(second[0], len(second[0]) - 5)
        logs[1].batches[data[1][1]] = changed(second[1], second[1].index(b"1 1 3"), b"1 1 x")
        _swap(logs[2], data[2][0], data[2][2])
        del logs[3].batches[data[3][1]]
        logs[4].batches[data[4][1]] = changed(second[4], BASE_TIMESTAMP_POS, struct.pack(">q", 1_234))
        newer = struct.pack(">q", logs[5].header(data[5][1]).max_timestamp + 9)
        logs[5].batches[data[5][1]] = changed(second[5], MAX_TIMESTAMP_POS, newer)
        for log in logs:
            log.write()
        originals = [LogFile(clusters.source, topic_name, partition) for partition in (6, 7)]
        originals[0].batches[2] = flipped(originals[0].batches[2], 80)
        originals[1].batches[1] = changed(originals[1].batches[1], originals[1].batches[1].index(b"7 1 2"), b"7 1 x")
        for log in originals:
            log.write()
    for is_deep in (False, True):
        report = verify_mirror(settings, is_deep=is_deep)
        assert kinds(report) == [
            ("changed", 0, 5),
            ("changed", 1, 8),
            ("changed", 4, 5),
            ("changed", 5, -1),
            ("changed", 6, 10),
            ("changed", 7, 7),
            ("missing", 3, 5),
            ("reordered", 2, 0),
            ("reordered", 2, 10),
        ], report.sentences()


def test_damage_in_the_map_and_records_of_others_are_found_and_the_command_says_so(
    clusters: TwoClusters, tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = clusters.source.bootstrap, clusters.target.bootstrap
    create_topic(source, topic_name, 3)
    for partition in range(3):
        write(source, topic_name, [f"a{partition}{i}" for i in range(10)], partition)
    settings, conf = mirrored(tmp_path, clusters, topic_name), tmp_path / "mirror.yaml"
    assert exit_code("verify", str(conf)) == 0
    assert capsys.readouterr().out.startswith("no difference\n30 records in 3 partitions of 1 topic found equal")
    # not always 0: a transaction that was aborted while the target topic came up has left a marker
    copies = [OffsetMap.open(settings.tables).translate(topic_name, partition, 0).target_offset for partition in range(3)]
    first, second, third = (offset for offset in copies if offset is not None)
    write(target, topic_name, ["from elsewhere"], 0)
    table = DeltaTable(table_uri(settings.tables))
    table.update(
        predicate="source_partition = 1 and kind = 'data'",
        updates={"target_start": "target_start + 2", "target_end": "target_end + 2"},
    )
    table.delete("source_partition = 2 and kind = 'data'")
    assert exit_code("verify", str(conf)) == 1
    output = capsys.readouterr().out
    assert f"not in map: target {topic_name}-0 offset {first + 11}: readers of the target see it" in output
    reordered = f"{topic_name}-1 offsets 0 to 9, target {topic_name}-1 offsets {second} to {second + 9}: the copy lies -2"
    assert f"reordered: source {reordered}" in output
    assert f"not in map: target {topic_name}-2 offsets {third} to {third + 9}" in output


def test_deleted_records_on_both_sides_are_reported_and_the_rest_is_equal(
    clusters: TwoClusters, tmp_path: Path, topic_name: str
) -> None:
    source, target = clusters.source.bootstrap, clusters.target.bootstrap
    create_topic(source, topic_name)
    for n in range(4):
        write(source, topic_name, [f"{n}{i}" for i in range(10)])
    settings = mirrored(tmp_path, clusters, topic_name)
    delete_records(source, topic_name, 15)
    delete_records(target, topic_name, 20)
    report = verify_mirror(settings)
    assert report.is_equal, report.sentences()
    assert report.unchecked == {Unchecked.SOURCE_DELETED: 15, Unchecked.TARGET_DELETED: 5}
    assert report.record_count == 20


def test_what_the_cleaners_of_both_clusters_removed_is_not_missing(
    clusters: TwoClusters, tmp_path: Path, topic_name: str
) -> None:
    source = clusters.source.bootstrap
    create_topic(source, topic_name, settings={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": source, "log_level": 0})
    for n in range(100):
        producer.produce(topic_name, f"value {n}", f"k{n % 7}")
        if n % 20 == 19:
            assert producer.flush(30) == 0
    settings = mirrored(tmp_path, clusters, topic_name)
    assert verify_mirror(settings).record_count == 100
    _clean(clusters, topic_name)
    report = verify_mirror(settings)
    assert report.is_equal, report.sentences()
    assert 0 < report.record_count < 100
    assert sum(report.unchecked.values()) == 100 - report.record_count


def test_message_sets_of_older_formats_are_mirrored_and_equal(clusters: TwoClusters, tmp_path: Path, topic_name: str) -> None:
    """As brokers before 0.11 left them on the disk: nobody can write them any more."""
    source, target = clusters.source.bootstrap, clusters.target.bootstrap
    create_topic(source, topic_name, len(OLD_LOGS))
    for partition in range(len(OLD_LOGS)):
        write(source, topic_name, ["there is a log"], partition)
    with stopped(clusters.source):
        for partition, entries in enumerate(OLD_LOGS):
            log = LogFile(clusters.source, topic_name, partition)
            log.batches = entries
            log.write()
    write(source, topic_name, ["of today"], 0)
    settings = mirrored(tmp_path, clusters, topic_name)
    topic_partitions = [(topic_name, partition) for partition in range(len(OLD_LOGS))]
    originals, copies = read_partitions(source, topic_partitions), read_partitions(target, topic_partitions)
    assert [len(records) for records in originals.values()] == [21, 30, 30, 10]
    offset_map = OffsetMap.open(settings.tables)
    for topic_partition in topic_partitions:
        assert [copy[1:] for copy in copies[topic_partition]] == [original[1:] for original in originals[topic_partition]]
        for original, copy in zip(originals[topic_partition], copies[topic_partition], strict=True):
            assert offset_map.translate(*topic_partition, original.offset).target_offset == copy.offset
    for is_deep in (False, True):
        report = verify_mirror(settings, is_deep=is_deep)
        assert report.is_equal, report.sentences()
        assert report.record_count == sum(map(len, originals.values()))


def _clean(clusters: TwoClusters, topic: str) -> None:
    """Until the source's cleaner has removed records; a new log segment makes the others cleanable."""
    for node in clusters:
        set_topic(node.bootstrap, topic, COMPACTED)
    wait_for("the cleaner", lambda: _left(clusters.source.bootstrap, topic) < 100)


def _left(bootstrap: str, topic: str) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, "tick", "tick")
    assert producer.flush(30) == 0
    return len([value for value in read_values(bootstrap, topic) if value.startswith("value")])
