"""A restore with preserved offsets on real brokers, without Spark: every record at its own offset, for both isolation levels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.conftest import TwoClusters
from tests.support import restore_runs
from tests.support.archives import ArchiveOfTest, archive_config
from tests.support.inline_restores import keyed
from tests.support.inline_session import InlineSession
from tests.support.mirror_runs import (
    CrashAt,
    CrashError,
    create_topic,
    delete_records,
    high_watermark,
    read_partitions,
    topic_settings,
    write,
    write_stamped,
)
from tests.support.own_worker_clients import own_worker_clients
from tests.support.preserved_logs import earliest, read_all, write_mixed
from tests.support.record_batches import batch, marker

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import ArchivedTopics, TopicDescription
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, PreservedLogDamagedError
from shallow_mirror.groups.archived_groups import GroupNotes
from shallow_mirror.operations.restore.dry_run import dry_run
from shallow_mirror.operations.restore.retention import lift_retention
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.sinks.kafka.targets import NO_LIMIT_MS
from shallow_mirror.types import (
    IsolationLevel,
    Segment,
    SegmentKind,
    SourcePartition,
    TargetPartition,
    TopicPartition as Partition,
)
from shallow_mirror.verify import verify_restore

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240)]

MINUTE_MS = 60_000


class Archived:
    """An archive of a topic of the source as its broker stores it, and of batches that are made here."""

    def __init__(self, clusters: TwoClusters, folder: Path) -> None:
        self.clusters, self.folder = clusters, folder
        source = {"alias": "east", "client": {"bootstrap.servers": clusters.source.bootstrap}}
        self.archive = ArchiveOfTest(archive_config(folder, source=source))

    def describe(self, topic: str, topic_id: str, configs: Mapping[str, str]) -> None:
        topics = ArchivedTopics.of(TableStorage(self.archive.config.table_location))
        description = TopicDescription(topic=topic, topic_id=topic_id, partitions=1, configs=configs)
        topics.record([description], run_epoch=1, micro_batch=1, at_ms=self.archive.now_ms)

    def add_log(self, topic: str) -> SourcePartition:
        """Archive all of a topic, in an object for each response of the broker."""
        bootstrap = self.clusters.source.bootstrap
        cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}))
        deadline = Deadline.after_ms(30_000, time.monotonic)
        source = SourcePartition(topic, cluster.metadata([topic], deadline).topics[topic].topic_id, 0)
        self.describe(topic, source.topic_id, {"retention.ms": "-1"})
        start = earliest(bootstrap, topic)
        reader = RangeReader(
            cluster,
            [ReadRange(source.topic_partition, start, high_watermark(bootstrap, topic), 1.0)],
            isolation=IsolationLevel.READ_COMMITTED,
            fetch_bytes=1 << 20,
            deadline=deadline,
        )
        for response in reader:
            for fetched in response:
                raw = [bytes(fetched.records[: int(fetched.index.size_bytes.sum())])]
                self.archive.archive({source: raw}, aborted={source: fetched.aborted}, positions={source: start})
                start = int(fetched.index.last_offset[-1]) + 1
        cluster.close()
        return source

    def note_groups(self, at: datetime) -> None:
        notes = GroupNotes(self.archive.config, TableStorage(self.archive.config.table_location).best_effort_tables())
        notes.run_pass(at)
        notes.close()

    def config(self, name: str, **settings: Any) -> RestoreConfig:
        groups: dict[str, Any] = {"topics": {"offsets": {".*": "preserved"}, "target_name": f"{name}.{{topic}}"}}
        groups |= {"restore": name, "tables": f"restore-{name}", **settings}
        return restore_runs.config(self.folder, self.archive.config, self.clusters.target.bootstrap, **groups)

    def restore(self, config: RestoreConfig, observer: Observer = observe_nothing) -> None:
        restore_runs.restore(config, InlineSession(), observer)


@pytest.fixture
def archived(two_clusters: TwoClusters, tmp_path: Path) -> Iterator[Archived]:
    with own_worker_clients():
        yield Archived(two_clusters, tmp_path)


def require_records(bootstrap: str, topic: str, expected: Mapping[int, bytes | None], start: int, end: int) -> None:
    """Consumers of both isolation levels return these records, and the log is [start, end)."""
    for isolation in ("read_committed", "read_uncommitted"):
        assert dict(read_all(bootstrap, topic, isolation)) == expected, isolation
    assert (earliest(bootstrap, topic), high_watermark(bootstrap, topic)) == (start, end)


def test_a_log_is_restored_as_it_was_up_to_a_time_inside_of_a_batch(archived: Archived, topic_name: str) -> None:
    source, target = archived.clusters.source.bootstrap, archived.clusters.target.bootstrap
    create_topic(source, topic_name, settings={"retention.ms": "-1"})
    write(source, topic_name, ["deleted"] * 7)
    delete_records(source, topic_name, 7)
    write_mixed(source, topic_name)
    now_ms = int(time.time() * 1000)
    write_stamped(source, topic_name, [(f"{minute}", now_ms + minute * MINUTE_MS) for minute in range(1, 10)])
    reader, group = Consumer({"bootstrap.servers": source, "group.id": f"of-{topic_name}"}), f"of-{topic_name}"
    reader.commit(offsets=[TopicPartition(topic_name, 0, 16)], asynchronous=False)  # the marker of the first transaction
    reader.close()
    archived.add_log(topic_name)
    made = SourcePartition(f"{topic_name}.made", "madetopicmadetopicmade", 0)
    archived.describe(made.topic, made.topic_id, {})
    of_made = [
        batch(0, deltas=[1, 4], last_offset_delta=6, timestamp=now_ms),
        batch(9, 3, attributes=0x10, producer_id=9, producer_epoch=0, timestamp=now_ms),
        marker(12, 0, 9),
    ]
    archived.archive.archive({made: of_made}, aborted={made: [(9, 9)]})
    for start, end, kind in ((13, 20, SegmentKind.EXPIRED), (20, 25, SegmentKind.GAP)):
        segment = Segment(source=made, source_start=start, source_end=end, kind=kind, target=TargetPartition(*made))
        archived.archive.decide(DecidedSegment(segment, None))
    archived.note_groups(datetime.now(UTC))

    cut_ms = now_ms + 5 * MINUTE_MS + MINUTE_MS // 2
    until = {"time": (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=cut_ms)).isoformat()}
    config = archived.config(f"back-{topic_name}", until=until, groups={"include": [group]})
    report = dry_run(config)
    assert report.is_fine, report.sentences()
    assert {each.topic: each.fillers.leading for each in report.partitions if each.fillers is not None} == {
        topic_name: 7,
        made.topic: 0,
    }
    for point in ("RunSlots", "Decide"):  # killed with all of it on the target, and none of it decided; then in front of the end
        with pytest.raises(CrashError):
            archived.restore(config, CrashAt(point))
    archived.restore(config)

    restored = config.target_topic(topic_name)
    at_source = read_partitions(source, [(topic_name, 0)])[topic_name, 0]
    expected = [record for record in at_source if record.timestamp_ms <= cut_ms]
    assert read_partitions(target, [(restored, 0)])[restored, 0] == expected
    cut = next(record.offset for record in at_source if record.timestamp_ms > cut_ms)
    require_records(target, restored, {record.offset: record.value for record in expected}, 7, cut)
    require_records(target, config.target_topic(made.topic), {1: b"v", 4: b"v"}, 0, 25)
    assert topic_settings(target, restored)["retention.ms"] == "-1"
    client = Consumer({"bootstrap.servers": target, "group.id": group})
    (committed,) = client.committed([TopicPartition(restored, 0)], timeout=30)
    client.close()
    assert committed.offset == 16
    for is_deep in (False, True):
        verified = verify_restore(config, is_deep=is_deep, from_start=True)
        assert verified.is_equal, verified.sentences()
        assert verified.record_count == len(expected) + 2


@pytest.mark.long
def test_topics_that_cannot_keep_offsets_and_other_writers_are_named(archived: Archived, topic_name: str) -> None:
    source, target = archived.clusters.source.bootstrap, archived.clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a", "b"])
    archived.add_log(topic_name)
    used = archived.config(f"used-{topic_name}")
    create_topic(target, used.target_topic(topic_name))
    write(target, used.target_topic(topic_name), ["foreign"])
    delete_records(target, used.target_topic(topic_name), 1)
    with pytest.raises(ConfigError, match=r"is not new \(its log has offsets 1 to 1\)"):
        archived.restore(used)
    assert not dry_run(used).is_fine
    compressed = archived.config(f"gzip-{topic_name}")
    create_topic(target, compressed.target_topic(topic_name), settings={"compression.type": "gzip"})
    with pytest.raises(ConfigError, match=r"has compression\.type=gzip"):
        archived.restore(compressed)
    assert "has compression.type=gzip" in "\n".join(dry_run(compressed).topics[0].problems)
    between = archived.config(f"between-{topic_name}")

    def write_as_well(point: str) -> None:
        if point == "RunSlots":
            write(target, between.target_topic(topic_name), ["foreign"])

    with pytest.raises(PreservedLogDamagedError, match="offsets from 2 on are not those of the source") as raised:
        archived.restore(between, write_as_well)
    assert raised.value.topic_partition == Partition(between.target_topic(topic_name), 0)


@pytest.mark.long
def test_two_restores_into_one_topic_leave_one_log(archived: Archived, topic_name: str) -> None:
    source, target = archived.clusters.source.bootstrap, archived.clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a", "b"])
    archived.add_log(topic_name)
    name = {"topics": {"offsets": {".*": "preserved"}, "target_name": "once.{topic}"}}
    first, second = (archived.config(f"{number}-{topic_name}", **name) for number in ("first", "second"))

    def restore_the_other(point: str) -> None:
        if point == "TakeDecision":
            archived.restore(second)

    with pytest.raises(PreservedLogDamagedError, match="offsets from 0 on are not those of the source"):
        archived.restore(first, restore_the_other)
    require_records(target, second.target_topic(topic_name), {0: b"a", 1: b"b"}, 0, 2)
    with pytest.raises(ConfigError, match="is not new"):
        archived.restore(archived.config(f"third-{topic_name}", **name))


@pytest.mark.long
def test_preserved_and_translated_topics_are_restored_together(archived: Archived, topic_name: str) -> None:
    source, target = archived.clusters.source.bootstrap, archived.clusters.target.bootstrap
    topics = [f"{topic_name}.{offsets}" for offsets in ("preserved", "translated")]
    for topic in topics:
        create_topic(source, topic, settings={"retention.ms": "-1"})
        write(source, topic, ["deleted"] * 3)
        delete_records(source, topic, 3)
        write_mixed(source, topic)
        archived.add_log(topic)
    offsets = {r".*\.preserved": "preserved"}
    config = archived.config(f"mixed-{topic_name}", topics={"offsets": offsets, "target_name": "mixed.{topic}"})
    for point in ("task.produced", "RunSlots", "Decide", "EndTxn"):
        with pytest.raises(CrashError):
            archived.restore(config, CrashAt(point))
    archived.restore(config)
    preserved, translated = (read_partitions(target, [(f"mixed.{topic}", 0)])[f"mixed.{topic}", 0] for topic in topics)
    first, second = (read_partitions(source, [(topic, 0)])[topic, 0] for topic in topics)
    assert preserved == first
    assert [record._replace(offset=0) for record in translated] == [record._replace(offset=0) for record in second]
    verified = verify_restore(config, is_deep=True)
    assert verified.is_equal, verified.sentences()


@pytest.mark.long
def test_more_fillers_than_a_commit_interval_takes_are_written_in_several_rounds(archived: Archived, topic_name: str) -> None:
    """Below the first offset of a partition with a record, between two records, and of a partition without any."""
    target, million = archived.clusters.target.bootstrap, 1_000_000
    full = SourcePartition(f"{topic_name}.full", "fulltopicfulltopicfull", 0)
    empty = SourcePartition(f"{topic_name}.empty", "emptytopicemptytopicem", 0)
    for source in (full, empty):
        archived.describe(source.topic, source.topic_id, {})
    at = [8 * million, 16 * million]
    archived.archive.archive({full: [batch(at[0], 1)]}, positions={full: at[0]})
    archived.archive.archive({full: [batch(at[1], 1)]})
    hole = Segment(source=empty, source_start=0, source_end=8 * million, kind=SegmentKind.EXPIRED, target=TargetPartition(*empty))
    archived.archive.decide(DecidedSegment(hole, None))
    config = archived.config(f"many-{topic_name}", write={"transaction_timeout_ms": 60_000, "commit_interval": "500 ms"})
    archived.restore(config)
    require_records(target, config.target_topic(full.topic), dict.fromkeys(at, b"v"), at[0], at[1] + 1)
    require_records(target, config.target_topic(empty.topic), {}, 8 * million, 8 * million)


def test_what_is_older_than_its_topic_kept_it_is_kept_until_that_is_lifted(archived: Archived, topic_name: str) -> None:
    source = SourcePartition(topic_name, "oldtopicoldtopicoldtop", 0)
    target, restored = archived.clusters.target.bootstrap, f"kept-{topic_name}.{topic_name}"
    configs = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "604800000",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "86400000",
    }
    archived.describe(topic_name, source.topic_id, {**configs, "retention.bytes": "-1"})
    archived.archive.archive({source: [keyed(0, 20)]}, positions={source: 0})
    config = archived.config(f"kept-{topic_name}", groups={"commit": "off"})
    archived.restore(config)
    paused = {name: topic_settings(target, restored)[name] for name in configs}
    forever = str(NO_LIMIT_MS)
    assert list(paused.values()) == ["compact,delete", "-1", forever, forever]
    report = verify_restore(config)
    assert (report.is_equal, report.record_count) == (True, 20)
    assert lift_retention(config, is_applied=True).is_fine
    assert {name: topic_settings(target, restored)[name] for name in configs} == configs
