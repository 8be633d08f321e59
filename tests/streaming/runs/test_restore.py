"""A restore from an archive of a real cluster into another one: what a read_committed consumer saw, up to the cut."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support import archive_runs, restore_runs
from tests.support.archive_traffic import PARTITIONS, write_transactions
from tests.support.mirror_runs import (
    CrashAt,
    CrashError,
    create_topic,
    delete_topic,
    read_values,
    topic_settings,
    write,
    write_stamped,
)

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.restore.retention import lift_retention
from shallow_mirror.verify import verify_restore

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("micro_batch_loop")]


def values_of(bootstrap: str, topic: str) -> list[list[str]]:
    return [read_values(bootstrap, topic, partition) for partition in range(PARTITIONS)]


def test_what_was_deleted_at_the_source_is_restored_with_its_settings_and_only_once(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target, restored = source_cluster.bootstrap, target_cluster.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, PARTITIONS, {"retention.ms": "7654321"})
    write_transactions(source, topic_name)
    archive = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(archive, spark)
    write(source, topic_name, ["in a later object"], 1)
    archive_runs.archive_all(archive, spark)
    written = values_of(source, topic_name)
    delete_topic(source, topic_name)
    settings = restore_runs.config(tmp_path, archive, target)
    with pytest.raises(CrashError):
        restore_runs.restore(settings, spark, observer=CrashAt("Decide"))
    restore_runs.restore(settings, spark)
    assert values_of(target, restored) == written
    assert topic_settings(target, restored)["retention.ms"] == "-1"
    restore_runs.restore(settings, spark)
    assert values_of(target, restored) == written
    assert lift_retention(settings, is_applied=True).is_fine
    assert topic_settings(target, restored)["retention.ms"] == "7654321"
    kinds = set(OffsetMap.open(settings.table_location).settled_rows()["kind"].to_pylist())
    assert {"data", "aborted", "abort", "commit"} <= kinds


def test_a_restore_ends_inside_a_batch_in_front_of_the_first_record_that_is_too_new(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target, restored = source_cluster.bootstrap, target_cluster.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, PARTITIONS, {"retention.ms": "-1"})  # its records are months old
    noon_ms = 1_777_636_800_000
    write_stamped(source, topic_name, [(f"{minute} past", noon_ms + minute * 60_000) for minute in range(10)], 0)
    write_stamped(source, topic_name, [("late", noon_ms + 3_600_000), ("early again", noon_ms)], 1)
    archive = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(archive, spark)
    settings = restore_runs.config(tmp_path, archive, target, until={"time": "2026-05-01T12:04:30Z"})
    restore_runs.restore(settings, spark)
    assert values_of(target, restored) == [[f"{minute} past" for minute in range(5)], []]
    other = restore_runs.config(tmp_path, archive, target, until={"decision": 1}, restore=settings.restore)
    with pytest.raises(ConfigError, match="this restore began with"):
        restore_runs.restore(other, spark)


@pytest.mark.long
def test_offsets_and_decisions_are_cuts_as_well(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    for partition in range(PARTITIONS):
        write(source, topic_name, [f"first {i}" for i in range(4)], partition)
    archive = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(archive, spark)
    decision = max(row["micro_batch"] for row in archive_runs.rows(archive))
    write(source, topic_name, ["second"], 0)
    archive_runs.archive_all(archive, spark)
    by_offset = restore_runs.config(
        tmp_path,
        archive,
        target,
        until={"offsets": {topic_name: {0: 2, 1: 0}}},
        tables="by-offset",
        topics={"target_name": "offsets.{topic}"},
    )
    restore_runs.restore(by_offset, spark)
    assert values_of(target, f"offsets.{topic_name}") == [["first 0", "first 1"], []]
    by_decision = restore_runs.config(
        tmp_path, archive, target, until={"decision": decision}, tables="by-decision", topics={"target_name": "decision.{topic}"}
    )
    restore_runs.restore(by_decision, spark)
    assert values_of(target, f"decision.{topic_name}") == [[f"first {i}" for i in range(4)]] * PARTITIONS
    beyond = restore_runs.config(tmp_path, archive, target, until={"offsets": {topic_name: {0: 99, 7: 1}}}, tables="beyond")
    with pytest.raises(ConfigError) as raised:
        restore_runs.restore(beyond, spark)
    assert len(raised.value.problems) == 2


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        partitions = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        consumer.commit(offsets=partitions, asynchronous=False)
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return [each.offset for each in consumer.committed(partitions, timeout=30)]
    finally:
        consumer.close()


def test_groups_continue_where_they_were_at_the_cut_transactions_are_whole_and_verify_finds_no_difference(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target, restored = source_cluster.bootstrap, target_cluster.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, PARTITIONS)
    write_transactions(source, topic_name)
    reading, ahead = f"reading-{topic_name}", f"ahead-{topic_name}"
    # In each partition: 20 committed records, a marker, 20 aborted ones, a marker, 20 committed ones at 42, a marker.
    commit(source, reading, topic_name, {0: 5, 1: 30})
    commit(source, ahead, topic_name, {0: 63, 1: 63})
    archive = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(archive, spark)
    cut = {"offsets": {topic_name: {0: 50, 1: 63}}, "whole_transactions": True}
    settings = restore_runs.config(tmp_path, archive, target, until=cut, groups={"include": [f".*-{topic_name}"]})
    restore_runs.restore(settings, spark)
    first, second = values_of(target, restored)
    assert first == [f"0-{i}" for i in range(20)]
    assert second == [f"{number}-{i}" for number in (0, 2) for i in range(20)]
    assert committed(target, reading, restored) == [5, 20]
    assert committed(target, ahead, restored)[0] >= 20
    report = verify_restore(settings)
    assert report.is_equal, report.sentences()
    assert report.record_count == 60
    inside = restore_runs.config(
        tmp_path,
        archive,
        target,
        until={"offsets": {topic_name: {0: 50, 1: 7}}},
        tables="inside",
        topics={"target_name": "inside.{topic}"},
        groups={"commit": "off"},
    )
    restore_runs.restore(inside, spark)
    deep = verify_restore(inside, is_deep=True)
    assert deep.is_equal, deep.sentences()
    assert deep.record_count == 20 + 8 + 7
    other = restore_runs.config(tmp_path, archive, target, tables="other", topics={"target_name": "inside.{topic}"})
    with pytest.raises(ConfigError, match="holds records that this restore did not write"):
        restore_runs.restore(other, spark)
    write(target, restored, ["by another writer"], 0)
    assert not verify_restore(settings, from_start=True).is_equal


def test_a_topic_that_was_deleted_by_mistake_comes_back_as_it_was(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    """With its partitions, settings and groups, although another topic of its name is archived by now."""
    source, target, group = source_cluster.bootstrap, target_cluster.bootstrap, f"reading-{topic_name}"
    create_topic(source, topic_name, PARTITIONS, {"retention.ms": "-1"})
    for partition in range(PARTITIONS):
        write(source, topic_name, [f"precious {number}" for number in range(4)], partition)
    commit(source, group, topic_name, {0: 3, 1: 1})
    archive = archive_runs.config(tmp_path, source, [topic_name], read={"on_data_loss": "continue"})
    archive_runs.archive_all(archive, spark)
    cut = datetime.now(UTC).isoformat()
    delete_topic(source, topic_name)
    create_topic(source, topic_name, 1, {"retention.ms": "7654321"})
    write(source, topic_name, ["after it"])
    archive_runs.archive_all(archive, spark)
    settings = restore_runs.config(tmp_path, archive, target, until={"time": cut}, groups={"include": [group]})
    restore_runs.restore(settings, spark)
    assert values_of(target, f"east.{topic_name}") == [[f"precious {number}" for number in range(4)]] * PARTITIONS
    assert topic_settings(target, f"east.{topic_name}")["retention.ms"] == "-1"
    assert committed(target, group, f"east.{topic_name}") == [3, 1]
    assert verify_restore(settings).is_equal
