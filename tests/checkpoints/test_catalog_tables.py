"""Folders that are refused for an offset map in a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.map_rows import run_of

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError, OffsetMapConflictError

pytestmark = pytest.mark.spark


@pytest.fixture
def tables(spark: Any, tmp_path: Path) -> Iterator[str]:
    """Create a schema of Spark's own catalog, with its files in `tmp_path`."""
    schema = "spark_catalog.somebody"
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{tmp_path}/schema'")
    yield f"catalog:{schema}"
    spark.sql(f"DROP SCHEMA {schema} CASCADE")


def take(tables: str, spark: Any) -> LedgerOwner:
    return LedgerOwner.take_over(
        TableStorage(tables, spark),
        name="m",
        source_cluster_id="S",
        target_cluster_id="T",
        run=run_of("one"),
        now_ms=lambda: 0,
    )


def test_a_schema_that_does_not_exist_is_named_with_the_statement_that_creates_it(spark: Any) -> None:
    with pytest.raises(ConfigError, match=r"CREATE SCHEMA `spark_catalog`\.`nowhere`"):
        take("catalog:spark_catalog.nowhere", spark)
    with pytest.raises(ConfigError, match="no offset map"):
        OffsetMap.open("catalog:spark_catalog.nowhere", spark)


def test_a_schema_is_not_read_without_spark() -> None:
    with pytest.raises(ConfigError, match="only Spark can access"):
        OffsetMap.open("catalog:spark_catalog.nowhere")


def test_tables_of_others_are_not_changed(spark: Any, tables: str) -> None:
    name = f"{tables.removeprefix('catalog:')}.offset_map"
    for source, problem in (("parquet", "not a Delta table"), ("delta", "not the offset map")):
        spark.sql(f"CREATE TABLE {name} (a INT) USING {source}")
        with pytest.raises(OffsetMapConflictError, match=problem):
            take(tables, spark)
        assert spark.table(name).columns == ["a"]
        spark.sql(f"DROP TABLE {name}")
