"""Options of `kafka-archive` for an archive whose table is in a catalog: the session says where the table is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.archives import ORDERS, SmallArchive, archive_document
from tests.support.record_batches import batch

from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.sources import kafka_archive
from shallow_mirror.streaming.sources.catalog_archive import kafka_archive_options, readable_location

SCHEMA = "spark_catalog.kafka_archive_of_tests"


def archive_file(folder: Path, **settings: Any) -> Path:
    path = folder / "archive.yaml"
    path.write_text(yaml.safe_dump(archive_document(**settings)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("file:/warehouse/archive_segments", "/warehouse/archive_segments"),
        ("file:///warehouse/archive_segments/", "/warehouse/archive_segments"),
        ("/warehouse/archive_segments", "/warehouse/archive_segments"),
        ("s3://bucket/tables/5f0c", "s3://bucket/tables/5f0c"),
        ("abfss://container@account.dfs.core.windows.net/5f0c", "abfss://container@account.dfs.core.windows.net/5f0c"),
        ("gs://bucket/5f0c", "gs://bucket/5f0c"),
    ],
)
def test_a_location_is_read_without_spark(location: str, expected: str) -> None:
    assert readable_location("`main`.`backup`.`archive_segments`", location) == expected


@pytest.mark.parametrize("location", ["dbfs:/user/hive/warehouse/archive_segments", "hdfs://name/archive_segments", "", None])
def test_a_location_that_only_spark_reads_is_refused_with_the_remedy(location: str | None) -> None:
    with pytest.raises(ConfigError, match=r"archive_segments` is in .*, which only Spark reads: .*archive verify FILE --rebuild"):
        readable_location("`main`.`backup`.`archive_segments`", location)


def test_an_archive_outside_a_catalog_is_named_by_its_file_and_needs_no_session(tmp_path: Path) -> None:
    path = archive_file(tmp_path)
    no_session: Any = None
    assert kafka_archive_options(no_session, path) == {"archive": str(path)}


@pytest.fixture
def schema(spark: Any, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"CREATE SCHEMA {SCHEMA} LOCATION '{tmp_path}/schema'")
    kafka_archive.register_kafka_archive(spark)
    yield SCHEMA
    spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.mark.spark
@pytest.mark.long
def test_an_archive_is_read_whose_table_a_catalog_keeps_under_another_name(spark: Any, schema: str, tmp_path: Path) -> None:
    archive = SmallArchive(tmp_path)
    archive.add_object([{ORDERS: batch(0, 5)}])
    archive.add_object([{ORDERS: batch(5, 5)}], starts={ORDERS: 5})
    placed = tmp_path / "5f0c2b1e"
    shutil.move(archive.tables / "archive_segments", placed)
    path = archive_file(tmp_path, objects=str(archive.objects), tables={"schema": schema}, checkpoint=str(tmp_path / "_spark"))
    with pytest.raises(
        ConfigError, match=r"archive_segments` cannot be found in the session's catalog: .*TABLE_OR_VIEW_NOT_FOUND"
    ):
        kafka_archive_options(spark, path)
    spark.sql(f"CREATE TABLE {schema}.archive_segments USING delta LOCATION '{placed}'")

    options = kafka_archive_options(spark, path)
    assert options == {"archiveSegments": str(placed), "objects": str(archive.objects)}
    frame = spark.read.format(kafka_archive.NAME).options(**options).option("records", "true").load()
    assert sorted(row.offset for row in frame.collect()) == list(range(10))
