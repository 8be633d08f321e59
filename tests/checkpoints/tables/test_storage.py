"""Which writer the tables have, by where they are and by who created them; no JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from shallow_mirror.checkpoints import OffsetMap, table_properties
from shallow_mirror.checkpoints.rows.schema import properties_of_new_map
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.checkpoints.tables.backends import name_in_sql
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.tables.storage import choose_writer
from shallow_mirror.errors import ConfigError


@pytest.mark.parametrize("tables", ["catalog:main.mirrors", "dbfs:/mirrors/m", "/Volumes/main/mirrors/m"])
def test_what_only_spark_can_write_is_written_by_spark(tables: str) -> None:
    assert choose_writer(tables, "auto") == "spark"


def test_tables_that_are_not_there_yet_are_written_by_deltalake(tmp_path: Path) -> None:
    assert choose_writer(str(tmp_path), "auto") == "deltalake"
    assert choose_writer(str(tmp_path), "spark") == "spark"


@pytest.mark.parametrize("name", ["deltalake", "spark"])
def test_auto_continues_with_the_writer_that_created_the_tables(tmp_path: Path, name: str) -> None:
    DeltalakeWriter(str(tmp_path / "offset_map")).create(properties_of_new_map(table_properties("m", "S", "T", name)))
    assert choose_writer(str(tmp_path), "auto") == name


def test_tables_in_a_folder_are_read_without_spark_and_those_in_a_catalog_are_not() -> None:
    assert [TableLocation(root).is_read_by_spark for root in ("/data/m", "s3://b/m", "/Volumes/a/b", "catalog:a.b")] == [
        False,
        False,
        False,
        True,
    ]
    with pytest.raises(ConfigError, match=r"only Spark can access the tables in catalog:main\.mirrors"):
        OffsetMap.open("catalog:main.mirrors")


def test_names_in_sql_are_quoted() -> None:
    assert name_in_sql("catalog:main.mirrors", "runs") == "`main`.`mirrors`.`runs`"
    assert name_in_sql("/data/a`b", "runs") == "delta.`/data/a``b/runs`"
