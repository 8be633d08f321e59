"""An archive and a restore whose tables are in a catalog, where only Spark reads and writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support import archive_runs, restore_runs
from tests.support.archive_traffic import PARTITIONS, write_transactions
from tests.support.mirror_runs import create_topic, high_watermark, read_values, write

from shallow_mirror.config import ArchiveConfig
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.status import gather_archive_status
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.operations.restore.dry_run import dry_run
from shallow_mirror.verify import verify_restore

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def schemas(spark_with_delta: Any, tmp_path: Path) -> Iterator[dict[str, str]]:
    names = {name: f"spark_catalog.{name}" for name in ("archived", "rebuilt", "restored", "restored_again")}
    for name, schema in names.items():
        spark_with_delta.sql(f"CREATE SCHEMA {schema} LOCATION '{tmp_path}/schemas/{name}'")
    yield names
    for schema in names.values():
        spark_with_delta.sql(f"DROP SCHEMA {schema} CASCADE")


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (partition,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
        return int(partition.offset)
    finally:
        consumer.close()


def in_catalog(config: ArchiveConfig, schema: str) -> ArchiveConfig:
    return config.model_copy(update={"tables": f"catalog:{schema}"})


def test_every_command_of_an_archive_works_and_a_restore_continues_in_a_catalog(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any, schemas: dict[str, str]
) -> None:
    source, target, restored = source_cluster.bootstrap, target_cluster.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, PARTITIONS)
    write_transactions(source, topic_name)
    group = f"readers-{topic_name}"
    commit(source, group, topic_name, 5)
    in_folder = archive_runs.config(
        tmp_path, source, [topic_name], checkpoint=str(tmp_path / "_spark"), retention={re.escape(topic_name): {"keep_bytes": 1}}
    )
    settings = in_catalog(in_folder, schemas["archived"])
    archive_runs.archive_all(settings, spark)
    write(source, topic_name, ["in a later object"], 0)
    archive_runs.archive_all(settings, spark)

    (topic,) = gather_archive_status(settings, spark).topics
    assert [partition.position for partition in topic.partitions] == [
        high_watermark(source, topic_name, partition) for partition in range(PARTITIONS)
    ]
    report = verify_archive(settings, spark, is_deep=True)
    assert (report.is_equal, report.findings.counts) == (True, {})
    assert clean(settings, spark, older_than_s=0).object_count == 0

    groups = {"include": [f".*-{re.escape(topic_name)}"]}
    restore = restore_runs.config(tmp_path, in_folder, target, checkpoint=str(tmp_path / "_state"), groups=groups)
    restore = restore.model_copy(
        update={
            "tables": f"catalog:{schemas['restored']}",
            "archive": restore.archive.model_copy(update={"tables": settings.tables}),
        }
    )
    assert dry_run(restore, spark).is_fine
    restore_runs.restore(restore, spark)
    restore_runs.restore(restore, spark)
    written = [read_values(source, topic_name, partition) for partition in range(PARTITIONS)]
    assert [read_values(target, restored, partition) for partition in range(PARTITIONS)] == written
    assert committed(target, group, restored) == 5
    verified = verify_restore(restore, spark=spark)
    assert verified.is_equal, verified.sentences()

    rebuilt = in_catalog(settings, schemas["rebuilt"])
    rebuild(settings, rebuilt.tables, spark)
    assert verify_archive(rebuilt, spark, is_deep=True).is_equal
    again = restore.model_copy(
        update={
            "restore": f"{restore.restore}-again",
            "tables": f"catalog:{schemas['restored_again']}",
            "archive": restore.archive.model_copy(update={"tables": rebuilt.tables}),
            "topics": restore.topics.model_copy(update={"target_name": "again.{topic}"}),
        }
    )
    assert dry_run(again, spark).is_fine

    assert expire(settings, spark, takes_over=True).object_count == 1
    assert verify_archive(settings, spark).is_equal
