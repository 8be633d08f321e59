"""Fail-over and fail-back with preserved offsets on real brokers: consumers move by changing their bootstrap address only."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer
from tests.conftest import TwoClusters
from tests.sinks.two_strict_clusters import run_kafka_slot
from tests.streaming.runs.test_preserved_offsets import has_end
from tests.support.mirror_runs import (
    Running,
    catch_up,
    config,
    create_topic,
    delete_records,
    high_watermark,
    open_transaction,
    read_partitions,
    write,
)
from tests.support.one_batch import one_batch_producer
from tests.support.preserved_logs import read_all, write_mixed

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.clients import BatchConsumer, BatchProducer, TopicPartition
from shallow_mirror.checkpoints import OffsetMap, first_rows_at
from shallow_mirror.checkpoints.rows.positions import moved_by
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, PreservedLogDamagedError
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.operations.status import gather_status
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.preflight.findings import Level
from shallow_mirror.sinks import observe_nothing
from shallow_mirror.sinks.kafka.preserved import read_guard_times, with_shared_producers
from shallow_mirror.sinks.kafka.targets import TargetTopics
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.slots import arrow_batch_of
from shallow_mirror.streaming.planning import PlannerConfig, SourceOffsets
from shallow_mirror.streaming.runs.target_logs import ContinuedLogs
from shallow_mirror.types import PlannedRange
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300)]

NO_LIMIT = str((1 << 63) - 1)
OF_A_TARGET = {"message.timestamp.before.max.ms": NO_LIMIT, "message.timestamp.after.max.ms": NO_LIMIT, "retention.ms": "-1"}
GROUP = "billing"


def mirror(folder: Path, source: str, target: str, topic: str, offsets: str) -> MirrorConfig:
    """Return a mirror of its own, by the name of the folder."""
    folder.mkdir(exist_ok=True)
    return config(folder, source, target, [topic], topics={"offsets": {".*": offsets}}, mirror=f"{folder.name}-{topic[-40:]}")


class Read(NamedTuple):
    offset: int
    value: bytes | None


def read_on(bootstrap: str, topic: str, count: int | None = None) -> list[Read]:
    """Return what the next member of the group reads, `count` records or all that there are, and commit behind them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{GROUP}-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "session.timeout.ms": 6_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    seen: list[Read] = []
    try:
        give_up_at = time.monotonic() + 60
        while count is None or len(seen) < count:
            assert time.monotonic() < give_up_at, seen
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                break
            offset = message.offset()
            assert offset is not None
            seen.append(Read(offset, message.value()))
        consumer.commit(asynchronous=False)
        return seen
    finally:
        consumer.close()


def committed_records(bootstrap: str, topic: str) -> list[Read]:
    return [Read(record.offset, record.value) for record in read_partitions(bootstrap, [(topic, 0)])[topic, 0]]


def move_group(conf: MirrorConfig, topic: str, **options: Any) -> None:
    report = sync_groups(conf, pattern=f"{GROUP}-{topic}", is_applied=True, **options)
    assert report.is_done
    (moved,) = report.partitions
    assert moved.to_offset == moved.offset, "the same number"


@pytest.fixture
def topic(two_clusters: TwoClusters, topic_name: str) -> str:
    create_topic(two_clusters.source.bootstrap, topic_name, settings=OF_A_TARGET)
    return topic_name


@pytest.mark.long
@pytest.mark.spark
def test_a_group_fails_over_and_back_and_reads_every_record_once(
    two_clusters: TwoClusters, tmp_path: Path, topic: str, spark: Any
) -> None:
    east, west = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    write_mixed(east, topic)
    seen = read_on(east, topic, 6)
    there = mirror(tmp_path / "there", east, west, topic, "preserved")
    catch_up(there, spark)
    move_group(there, topic)
    seen += read_on(west, topic)
    # read_uncommitted readers of the source see aborted records, those of the target do not.
    expected = [Read(*record) for record in read_all(east, topic, "read_committed")]
    assert [record for record in seen if record in expected] == expected
    switched_at = high_watermark(east, topic)
    assert has_end(west, topic, switched_at)

    write_mixed(west, topic)
    seen += read_on(west, topic, 3)
    back = mirror(tmp_path / "back", west, east, topic, "continued")
    findings = preflight_mirror(back).findings
    assert not [finding for finding in findings if finding.level is Level.STOPS], findings
    assert any(f"is continued at offset {switched_at}" in finding.what for finding in findings)
    catch_up(back, spark)
    assert committed_records(east, topic) == committed_records(west, topic)
    assert high_watermark(east, topic) == high_watermark(west, topic)
    move_group(back, topic)
    seen += read_on(east, topic)
    expected = committed_records(east, topic)
    assert [record for record in seen if record in expected] == expected
    report = verify_mirror(back)
    assert report.is_equal, report.sentences()
    (shown,) = gather_status(back).topics
    assert shown.offsets == "preserved"
    positions = OffsetMap.open(back.tables).positions()
    assert [position.offset for position in positions.values()] == [high_watermark(west, topic)]

    # And once more: a third mirror continues the topic on the other side.
    write_mixed(east, topic)
    again = mirror(tmp_path / "again", east, west, topic, "continued")
    catch_up(again, spark)
    assert committed_records(east, topic) == committed_records(west, topic)
    report = verify_mirror(again)
    assert report.is_equal, report.sentences()


@pytest.mark.long
@pytest.mark.spark
def test_an_application_that_still_writes_to_the_old_source_stops_the_mirror_there(
    two_clusters: TwoClusters, tmp_path: Path, topic: str, spark: Any
) -> None:
    east, west = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    write(east, topic, ["a", "b"])
    catch_up(mirror(tmp_path / "there", east, west, topic, "preserved"), spark)
    write(west, topic, ["c"])
    back = mirror(tmp_path / "back", west, east, topic, "continued")
    catch_up(back, spark)
    write(east, topic, ["late"])
    write(west, topic, ["d"])
    with pytest.raises(PreservedLogDamagedError, match=f"target {topic}-0: offsets from 3 on are not those of the source"):
        catch_up(back, spark)
    assert [record.value for record in committed_records(east, topic)] == [b"a", b"b", b"c", b"late"]


@pytest.mark.long
@pytest.mark.spark
def test_the_first_mirror_stops_where_the_target_was_written_to(
    two_clusters: TwoClusters, tmp_path: Path, topic: str, spark: Any
) -> None:
    """It is started again, while the other one copies to its source."""
    east, west = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    write(east, topic, ["a"])
    there = mirror(tmp_path / "there", east, west, topic, "preserved")
    catch_up(there, spark)
    write(west, topic, ["b"])
    with Running(mirror(tmp_path / "back", west, east, topic, "continued"), spark) as running:
        running.wait_for("the record that was written after the switch", lambda: has_end(east, topic, 2))
        with pytest.raises(ConfigError, match="would be a replication cycle"):
            catch_up(there, spark)
    assert committed_records(east, topic) == committed_records(west, topic)


@pytest.mark.long
@pytest.mark.spark
def test_what_was_not_mirrored_before_the_switch_is_named(
    two_clusters: TwoClusters, tmp_path: Path, topic: str, spark: Any
) -> None:
    east, west = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    write(east, topic, ["a", "b"])
    catch_up(mirror(tmp_path / "there", east, west, topic, "preserved"), spark)
    write(east, topic, ["not mirrored"])
    back = mirror(tmp_path / "back", west, east, topic, "continued")
    with pytest.raises(ConfigError, match=f"{topic}-0 ends at 3, source partition {topic}-0 at 2: offsets 2 to 2 of the target"):
        catch_up(back, spark)
    write(west, topic, ["c", "d"])
    with pytest.raises(ConfigError, match=f"source {topic}-0 offset 2, target {topic}-0 offset 2: .*the value differs"):
        catch_up(back, spark)
    with open_transaction(east, topic, ["open"]), pytest.raises(ConfigError, match="has an open transaction from offset 3 on"):
        catch_up(back, spark)
    assert high_watermark(west, topic) == 4
    assert [record.value for record in committed_records(east, topic)] == [b"a", b"b", b"not mirrored", b"open"]


def test_a_log_is_continued_behind_what_it_holds(two_clusters: TwoClusters, tmp_path: Path, topic: str) -> None:
    """Without Spark: whole batches are on both clusters already; one slot copies what was written to the other since."""
    east, west = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(west, topic, settings=OF_A_TARGET)
    for n in range(3):
        producer = one_batch_producer(east, topic)
        for value in range(5):
            producer.produce(topic, f"{n} {value}", partition=0)
        assert producer.flush(30) == 0
    copy_batches(east, west, topic, 15)
    delete_records(east, topic, 7)  # within a batch
    write(west, topic, ["switched", "to", "west"])
    conf = mirror(tmp_path / "back", west, east, topic, "continued")
    assert continue_log(conf, topic) == 15
    assert committed_records(east, topic) == [record for record in committed_records(west, topic) if record.offset >= 7]
    assert high_watermark(east, topic) == high_watermark(west, topic) == 18


def copy_batches(source: str, target: str, topic: str, end: int) -> None:
    with BatchConsumer({"bootstrap.servers": source}) as consumer, BatchProducer({"bootstrap.servers": target}) as producer:
        consumer.assign({TopicPartition(topic, 0): "earliest"})
        while high_watermark(target, topic) < end:
            for fetched in consumer.poll_batches(max_bytes=1 << 20, timeout_ms=1_000):
                producer.send_batch(fetched.topic_partition, fetched)
            producer.flush()


def continue_log(conf: MirrorConfig, topic: str) -> int:
    """Compare, agree, and copy in one slot what the log lacks; return where it was continued."""

    def deadline() -> Deadline:
        return Deadline.after_ms(30_000, time.monotonic)

    with closing(Cluster(conf.source.client)) as source, closing(Cluster(conf.target.client)) as target:
        targets = TargetTopics(conf, source, target, positions={}, route=lambda name: name)
        targets.prepare({topic: 1}, deadline())
        listing = SourceOffsets(PlannerConfig.of_mirror(conf), source).log_ends(deadline())
        ((partition, end),) = listing.ends.items()
        logs = ContinuedLogs(conf, lambda _step, _detail: None, deadline)
        first = first_rows_at({partition: 0}, targets.routes[topic].target_of)
        rows = with_shared_producers(target, logs.with_existing(first), conf.topics.is_preserved, deadline())
        position = moved_by({}, rows)[partition]
        job = KafkaSlotJob.template(conf, map_id="map", run_id="run", observer=observe_nothing)
        guard_times = read_guard_times(target, conf.write.transaction_timeout_ms, deadline())
    assert position.shared_producer_id is not None
    slot = replace(
        job,
        routes=dict(targets.routes),
        positions={partition: position.offset},
        target_ends={TopicPartition(topic, 0): position.target_end},
        shared_producers={partition: position.shared_producer_id},
        origins={TopicPartition(topic, 0): position.origin},
        guard_times=guard_times,
        time_left_ms=30_000.0,
    )
    planned = PlannedRange(slot=0, source=partition, start=position.offset, end=end, bytes_per_offset=100.0)
    result = run_kafka_slot(slot, iter([arrow_batch_of([planned])]), is_planned_ranges=True)
    assert [segment.source_end for segment in result.segments][-1] == end
    return position.offset
