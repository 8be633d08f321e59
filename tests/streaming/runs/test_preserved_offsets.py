"""`topics.offsets: preserved` on real brokers: every record at its own offset, for consumers of both isolation levels."""

from __future__ import annotations

import functools
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.conftest import TwoClusters
from tests.support.mirror_runs import (
    Running,
    catch_up,
    config,
    create_topic,
    delete_records,
    high_watermark,
    read_partitions,
    set_topic,
    topics_of,
    wait_for,
    write,
    write_stamped,
)
from tests.support.one_batch import one_batch_producer
from tests.support.preserved_logs import earliest, read_all, write_mixed

from shallow_mirror.checkpoints import OffsetMap, rows_from_arrow
from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, IncompleteRunError, PreservedLogDamagedError, TopicSettingsError
from shallow_mirror.operations.status import gather_status
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.preflight.findings import Level
from shallow_mirror.sinks.kafka.preserved.offset_probe import PROBE_PREFIX
from shallow_mirror.sinks.kafka.targets import TargetTopics
from shallow_mirror.streaming.runs import mirror_query, topic_monitor
from shallow_mirror.types import SegmentKind
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(240), pytest.mark.usefixtures("micro_batch_loop")]

PRESERVED: dict[str, Any] = {"topics": {"offsets": {".*": "preserved"}}}


def conf_of(clusters: TwoClusters, folder: Path, topic: str, **groups: Any) -> MirrorConfig:
    return config(folder, clusters.source.bootstrap, clusters.target.bootstrap, [topic], **{**PRESERVED, **groups})


def require_equal(clusters: TwoClusters, topic: str) -> None:
    """Both consumers of the target see what a read_committed consumer of the source sees, at the same offsets and times."""
    source = read_partitions(clusters.source.bootstrap, [(topic, 0)])[topic, 0]
    assert source == read_partitions(clusters.target.bootstrap, [(topic, 0)])[topic, 0]
    committed = [(record.offset, record.value) for record in source]
    assert committed == read_all(clusters.target.bootstrap, topic, "read_uncommitted")
    assert high_watermark(clusters.source.bootstrap, topic) == high_watermark(clusters.target.bootstrap, topic)


def has_end(bootstrap: str, topic: str, end: int) -> bool:
    return high_watermark(bootstrap, topic) == end


def test_every_record_keeps_its_offset_whatever_lies_between(
    two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    idle, late, timed = (f"{topic_name}.{name}" for name in ("idle", "late", "timed"))
    for topic in (topic_name, idle):
        create_topic(source, topic, settings={"retention.ms": "-1"})
        write(source, topic, ["deleted"] * 7)
        delete_records(source, topic, 7)
    write_mixed(source, topic_name)
    create_topic(source, late, settings={"retention.ms": "-1"})
    write_mixed(source, late)
    create_topic(source, timed)
    now_ms = int(time.time() * 1000)
    for at_ms in (now_ms - 60_000, now_ms):
        write_stamped(source, timed, [("timed", at_ms)] * 3)
    starts = {"start": {".*late": "latest", ".*timed": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()}}
    conf = config(tmp_path, source, target, [topic_name, idle, late, timed], topics={**PRESERVED["topics"], **starts})
    findings = preflight_mirror(conf).findings
    assert not [finding for finding in findings if finding.level is Level.STOPS]
    assert any(finding.what.startswith("4 partitions not beginning at offset 0") for finding in findings)
    catch_up(conf, spark)
    require_equal(two_clusters, topic_name)
    assert earliest(target, topic_name) == 7
    # A group that has read all of the idle topic continues there, and so does whoever writes to it after a move.
    assert high_watermark(target, idle) == 7
    # Nothing of a topic in front of its start is there, and its end is that of the source.
    late_start = high_watermark(source, late)
    assert (high_watermark(target, late), read_all(target, late, "read_uncommitted")) == (late_start, [])
    assert (earliest(target, timed), read_all(target, timed, "read_uncommitted")) == (3, [(n, b"timed") for n in (3, 4, 5)])

    write_mixed(source, topic_name)
    write_mixed(source, late)
    catch_up(conf, spark)
    require_equal(two_clusters, topic_name)
    assert earliest(target, late) == late_start
    behind_start = [record for record in read_partitions(source, [(late, 0)])[late, 0] if record.offset >= late_start]
    assert behind_start == read_partitions(target, [(late, 0)])[late, 0]
    rows = rows_from_arrow(DeltaTable(table_uri(conf.tables)).to_pyarrow_table())
    data = [row.segment for row in rows if row.segment.kind is SegmentKind.DATA]
    assert data
    assert all(segment.target_start == segment.source_start for segment in data)
    assert len({row.shared_producer_id for row in rows}) == 1
    assert not [name for name in topics_of(target) if name.startswith(PROBE_PREFIX)]
    report = verify_mirror(conf)
    assert report.is_equal, report
    fillers = sum(row.segment.source_end - row.segment.source_start for row in rows if row.segment.kind is not SegmentKind.DATA)
    assert (report.preserved_partition_count, report.filler_count) == (4, fillers)
    counts = {topic.topic: (topic.offsets, topic.filler_count) for topic in gather_status(conf).topics}
    of_late = counts.pop(late)[1]
    assert counts == {topic_name: ("preserved", fillers - of_late), idle: ("preserved", 0), timed: ("preserved", 0)}
    assert fillers - of_late > of_late > 0


@pytest.mark.long
def test_a_lost_map_decision_is_recorded_from_the_log_of_the_target(
    two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any
) -> None:
    create_topic(two_clusters.source.bootstrap, topic_name)
    write_mixed(two_clusters.source.bootstrap, topic_name)
    first, second = conf_of(two_clusters, tmp_path, topic_name), tmp_path / "copy"
    catch_up(first, spark)
    # The map as it was before the second part: as if the run had been killed in front of its decision.
    shutil.copytree(tmp_path / "tables", second)
    write_mixed(two_clusters.source.bootstrap, topic_name)
    catch_up(first, spark)
    shutil.rmtree(tmp_path / "tables")
    second.rename(tmp_path / "tables")
    catch_up(first, spark)
    require_equal(two_clusters, topic_name)
    positions = OffsetMap.open(first.tables).positions()
    end = high_watermark(two_clusters.source.bootstrap, topic_name)
    assert [position.offset for position in positions.values()] == [end]


def test_records_are_visible_without_a_decision(two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["first"])
    conf = conf_of(two_clusters, tmp_path, topic_name)
    with Running(conf, spark) as running:
        running.wait_for("the first record", lambda: topic_name in topics_of(target) and high_watermark(target, topic_name) == 1)
        for n in range(3):
            write(source, topic_name, [f"further {n}"])
            running.wait_for("a further record", functools.partial(has_end, target, topic_name, 2 + n))
    require_equal(two_clusters, topic_name)


def test_an_idle_topic_whose_setting_was_changed_is_left_out_until_it_is_back_and_others_continue(
    two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_monitor, "CONTROLS_EVERY_S", 0.3)
    monkeypatch.setattr(mirror_query, "FOLLOW_MS", 0.0)
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    idle, busy = f"{topic_name}.idle", f"{topic_name}.busy"
    for topic in (idle, busy):
        create_topic(source, topic)
        write(source, topic, ["first"])
    topics = {**PRESERVED["topics"], "discovery": "1 second"}
    conf = config(tmp_path, source, target, [idle, busy], topics=topics, on_error="isolate")

    def left_out() -> dict[str, str]:
        return {left.source.topic: left.error_name for left in gather_status(conf).left_out}

    catch_up(conf, spark)
    set_topic(target, idle, {"cleanup.policy": "compact,delete"})
    write(source, busy, ["second"])
    with pytest.raises(IncompleteRunError, match=rf"left out: {idle}-0 \(target topic {idle} has cleanup\.policy=compact,delete"):
        catch_up(conf, spark)
    assert has_end(target, busy, 2)
    set_topic(target, idle, {"cleanup.policy": "delete"})
    with Running(conf, spark) as running:
        running.wait_for("the first plan", lambda: not left_out())
        set_topic(target, idle, {"cleanup.policy": "compact,delete"})
        running.wait_for("what is left out", lambda: left_out() == {idle: "TopicSettingsError"})
        write(source, busy, ["third"])
        running.wait_for("the other topic", functools.partial(has_end, target, busy, 3))
        set_topic(target, idle, {"cleanup.policy": "delete"})
        running.wait_for("the topic", lambda: not left_out())
        write(source, idle, ["second"])
        running.wait_for("its next record", functools.partial(has_end, target, idle, 2))
    for topic in (idle, busy):
        require_equal(two_clusters, topic)


@pytest.mark.long
def test_a_foreign_writer_stops_the_partition_with_its_offset(
    two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a", "b"])
    conf = conf_of(two_clusters, tmp_path, topic_name)
    catch_up(conf, spark)
    write(target, topic_name, ["foreign"])
    write(source, topic_name, ["c"])
    with pytest.raises(PreservedLogDamagedError, match=f"target {topic_name}-0: offsets from 2 on are not those of the source"):
        catch_up(conf, spark)
    assert high_watermark(target, topic_name) == 3
    # Translated offsets go on from there, and the map stays exact.
    conf = conf_of(two_clusters, tmp_path, topic_name, topics={"offsets": {".*": "translated"}})
    catch_up(conf, spark)
    values = [record.value for record in read_partitions(target, [(topic_name, 0)])[topic_name, 0]]
    assert values == [b"a", b"b", b"foreign", b"c"]


@pytest.mark.long
def test_a_compacted_topic_keeps_its_offsets(two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any) -> None:
    source = two_clusters.source.bootstrap
    settings = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    create_topic(source, topic_name, settings=settings)
    for n in range(4):
        producer = one_batch_producer(source, topic_name)
        for key in range(6):
            producer.produce(topic_name, key=f"{key if n == 0 or key % 2 else n * 10 + key}", value=f"{n} {key}", partition=0)
        assert producer.flush(30) == 0
    wait_for("compaction", lambda: len(read_partitions(source, [(topic_name, 0)])[topic_name, 0]) < 24)
    catch_up(conf_of(two_clusters, tmp_path, topic_name), spark)
    records = read_partitions(source, [(topic_name, 0)])[topic_name, 0]
    copied = {
        record.offset: record for record in read_partitions(two_clusters.target.bootstrap, [(topic_name, 0)])[topic_name, 0]
    }
    # Either side may have compacted more by now: what both have is at the same offset, and the newest of each key is there.
    newest = {record.key: record for record in records}
    assert all(copied[record.offset] == record for record in newest.values())
    assert all(copied[record.offset] == record for record in records if record.offset in copied)
    assert high_watermark(two_clusters.target.bootstrap, topic_name) == high_watermark(source, topic_name)


@pytest.mark.long
def test_a_target_topic_that_is_not_new_is_refused(
    two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    for bootstrap in (source, target):
        create_topic(bootstrap, topic_name)
        write(bootstrap, topic_name, ["a"])
    limits = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
    set_topic(target, topic_name, dict.fromkeys(limits, str((1 << 63) - 1)))
    findings = preflight_mirror(conf_of(two_clusters, tmp_path, topic_name)).findings
    assert any(finding.level is Level.STOPS and "is not new, its log ends at 1" in finding.what for finding in findings)
    with pytest.raises(ConfigError, match=r"is not new \(its log has offsets 0 to 1\)"):
        catch_up(conf_of(two_clusters, tmp_path, topic_name), spark)


@pytest.mark.long
def test_translated_offsets_that_are_refused_after_a_changed_setting_leave_the_way_back(
    two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that ends preservation would take the offset of the next record."""
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a"])
    preserved = conf_of(two_clusters, tmp_path, topic_name)
    catch_up(preserved, spark)
    write_stamped(source, topic_name, [("b", int(time.time() * 1000) - 5_000)])
    prepare = TargetTopics.prepare

    def prepare_and_change(*arguments: Any, **others: Any) -> None:
        prepare(*arguments, **others)
        set_topic(target, topic_name, {"message.timestamp.type": "LogAppendTime"})

    with monkeypatch.context() as started:
        started.setattr(TargetTopics, "prepare", prepare_and_change)
        with pytest.raises(TopicSettingsError) as stopped:
            catch_up(preserved, spark)
    assert "topics.offsets" not in str(stopped.value)
    assert high_watermark(target, topic_name) == 2
    translated = conf_of(two_clusters, tmp_path, topic_name, topics={"offsets": {}})
    with pytest.raises(ConfigError, match=r"offset 1: the timestamp differs by .*Set topics\.offsets back to preserved"):
        catch_up(translated, spark)
    assert high_watermark(target, topic_name) == 2
    set_topic(target, topic_name, {"message.timestamp.type": "CreateTime"})
    write(source, topic_name, ["c"])
    catch_up(preserved, spark)
    assert read_all(target, topic_name, "read_uncommitted") == [(0, b"a"), (1, b"b"), (2, b"c")]
    (difference,) = verify_mirror(preserved).differences
    assert "offset 1: the timestamp differs" in difference.sentence


@pytest.mark.long
def test_preserved_offsets_become_translated_without_a_record_twice_and_not_preserved_again(
    two_clusters: TwoClusters, tmp_path: Path, topic_name: str, spark: Any
) -> None:
    """What a run had written when it was killed is in the log only: the map gets it before the first transaction."""
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a"])
    preserved, undecided = conf_of(two_clusters, tmp_path, topic_name), tmp_path / "copy"
    catch_up(preserved, spark)
    shutil.copytree(tmp_path / "tables", undecided)
    write_mixed(source, topic_name)
    catch_up(preserved, spark)
    shutil.rmtree(tmp_path / "tables")
    undecided.rename(tmp_path / "tables")
    write(source, topic_name, ["last"])
    translated = conf_of(two_clusters, tmp_path, topic_name, topics={"offsets": {}})
    catch_up(translated, spark)
    copies = {bootstrap: read_partitions(bootstrap, [(topic_name, 0)])[topic_name, 0] for bootstrap in (source, target)}
    assert [record.value for record in copies[target]] == [record.value for record in copies[source]]
    assert verify_mirror(translated).differences == ()
    with pytest.raises(ConfigError, match=f"topics.offsets: {topic_name} was mirrored with translated offsets until now"):
        catch_up(preserved, spark)
