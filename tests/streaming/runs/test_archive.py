"""An archive of a real cluster: every batch as the broker stores it, every offset in one row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support import archive_runs
from tests.support.archive_traffic import PARTITIONS, write_transactions
from tests.support.mirror_runs import CrashAt, CrashError, Running, create_topic, high_watermark, last_stable_offset, write
from tests.support.probes import probe

from shallow_mirror.archive_format import ObjectName, parse_footer
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.operations.archive.adopt import adopt
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.status import gather_archive_status
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(300)]


def ends_of(bootstrap: str, topic: str) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): high_watermark(bootstrap, topic, partition) for partition in range(PARTITIONS)}


def test_an_archive_has_the_bytes_that_the_broker_has_and_continues_where_it_was(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source = source_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    for partition in range(PARTITIONS):
        write(source, topic_name, [f"plain {i}" for i in range(50)], partition)
    write_transactions(source, topic_name)
    settings = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(settings, spark)
    ends = ends_of(source, topic_name)
    assert archive_runs.covered(settings) == ends
    assert archive_runs.archived_bytes(settings) == archive_runs.source_bytes(source, ends)
    aborted = [txn for row in archive_runs.rows(settings) for txn in row["aborted"] or ()]
    assert len(aborted) == PARTITIONS
    assert all(txn["first_offset"] < txn["last_offset"] for txn in aborted)

    write(source, topic_name, ["later"], 1)
    archive_runs.archive_all(settings, spark)
    ends = ends_of(source, topic_name)
    assert archive_runs.covered(settings) == ends
    assert archive_runs.archived_bytes(settings) == archive_runs.source_bytes(source, ends)


@pytest.mark.usefixtures("micro_batch_loop")
@pytest.mark.parametrize(
    "point",
    [pytest.param("task.stored", marks=pytest.mark.long), "done.RunSlots", pytest.param("done.Decide", marks=pytest.mark.long)],
)
def test_a_crash_leaves_an_object_that_no_row_names_or_a_decision_that_holds(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any, point: str
) -> None:
    source = source_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    write_transactions(source, topic_name)
    settings = archive_runs.config(tmp_path, source, [topic_name])
    with pytest.raises(CrashError):
        archive_runs.archive_all(settings, spark, observer=CrashAt(point))
    archive_runs.archive_all(settings, spark)
    ends = ends_of(source, topic_name)
    assert archive_runs.covered(settings) == ends
    assert archive_runs.archived_bytes(settings) == archive_runs.source_bytes(source, ends)
    names = {path.relative_to(settings.objects).as_posix() for path in Path(settings.objects).rglob("*.batches")}
    named = {row["object_name"] for row in archive_runs.rows(settings) if row["object_name"]}
    assert named <= names
    orphans = names - named
    assert len(orphans) == (0 if point == "done.Decide" else 1)
    for name in names:
        parsed = ObjectName.parse(name)
        assert parsed is not None
        footer = parse_footer(name, (Path(settings.objects) / name).read_bytes())
        assert footer.header.archive_id == parsed.archive_id


@pytest.mark.long
def test_an_open_transaction_is_archived_once_it_has_ended(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source = source_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    producer = Producer({"bootstrap.servers": source, "transactional.id": f"open-{topic_name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic_name, "open", partition=partition)
    producer.flush(30)
    write(source, topic_name, ["behind it"], 0)
    settings = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(settings, spark)
    assert archive_runs.covered(settings) == dict.fromkeys(ends_of(source, topic_name), 0)
    producer.commit_transaction(30)
    assert last_stable_offset(source, topic_name, 0) == 3
    archive_runs.archive_all(settings, spark)
    ends = ends_of(source, topic_name)
    assert archive_runs.covered(settings) == ends
    assert archive_runs.archived_bytes(settings) == archive_runs.source_bytes(source, ends)


@pytest.mark.usefixtures("micro_batch_loop")
def test_a_topic_that_appears_while_the_archive_runs_is_archived_from_its_start_and_described(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, late, port = source_cluster.bootstrap, f"{topic_name}-late", free_ports(1)[0]
    create_topic(source, topic_name)
    write(source, topic_name, ["early"])
    settings = archive_runs.config(tmp_path, source, [f"{topic_name}.*"], metrics={"port": port})

    def reached(topic: str) -> int:
        position = _positions(settings).get(TopicPartition(topic, 0))
        return 0 if position is None else position.offset

    def described() -> dict[str, tuple[int, str]]:
        topics = ArchivedTopics.of(TableStorage(settings.tables)).latest().values()
        return {topic.topic: (topic.partitions, topic.configs["retention.ms"]) for topic in topics}

    with Running(settings, spark) as archive:
        archive.wait_for("the first topic", lambda: (tmp_path / "tables" / "archive_segments").exists() and reached(topic_name))
        assert set(described()) == {topic_name}
        create_topic(source, late, 2, {"retention.ms": "7654321"})
        write(source, late, ["late"])
        archive.wait_for("the late topic", lambda: reached(late) == 1)
        assert (probe(port, "healthz"), probe(port, "readyz")) == ((200, "live\n"), (200, "ready\n"))
        assert described()[late] == (2, "7654321")


@pytest.mark.usefixtures("micro_batch_loop")
def test_a_running_archive_deletes_what_its_retention_does_not_keep_and_the_commands_agree(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source = source_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    settings = archive_runs.config(tmp_path, source, [topic_name], retention={topic_name: {"keep_bytes": 1}})
    for number in range(2):
        write_transactions(source, topic_name)
        archive_runs.archive_all(settings, spark)
        assert verify_archive(settings, is_deep=True).is_equal
        assert len(archive_runs.rows(settings)) == PARTITIONS * (2 + number)
    archive_runs.archive_all(settings, spark)  # nothing to archive: it expires at its start
    states = [row["state"] for row in archive_runs.rows(settings) if row["kind"] == "data"]
    assert states.count("DELETE_SEGMENT_FINISHED") == PARTITIONS
    report = verify_archive(settings, is_deep=True)
    assert (report.is_equal, report.findings.counts) == (True, {})
    assert report.object_count == len(list(Path(settings.objects).rglob("*.batches")))
    assert archive_runs.covered(settings) == ends_of(source, topic_name)
    assert expire(settings).object_count == 0

    write(source, topic_name, ["not archived yet"], 0)
    status = gather_archive_status(settings)
    assert status.source_problem is None
    (topic,) = status.topics
    assert [partition.lag_offsets for partition in topic.partitions] == [1, *[0] * (PARTITIONS - 1)]
    archive_runs.archive_all(settings, spark)

    new = settings.model_copy(update={"tables": str(tmp_path / "new"), "checkpoint": str(tmp_path / "new" / "_spark")})
    rebuild(settings, new.tables)
    assert [_range_of(row) for row in archive_runs.rows(new)] == [_range_of(row) for row in archive_runs.rows(settings)]
    with pytest.raises(ConfigError, match=r"belong to the table in .*, not to this table"):
        archive_runs.archive_all(new, spark)
    adopt(new)
    write(source, topic_name, ["after the table was rebuilt"], 1)
    archive_runs.archive_all(new, spark)
    assert verify_archive(new, is_deep=True).is_equal
    assert {partition: position.offset for partition, position in _positions(new).items()} == ends_of(source, topic_name)


def _range_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("source_topic_id", "source_partition", "lineage", "source_start", "source_end", "kind", "object_name", "state")
    return tuple(row[name] for name in names)


def _positions(settings: ArchiveConfig) -> dict[TopicPartition, Position]:
    positions = ArchiveTable.open(settings.tables).positions()
    return {source.topic_partition: position for source, position in positions.items()}
