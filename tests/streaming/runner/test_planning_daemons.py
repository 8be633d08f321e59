"""Daemons of workers that only planned are ended, and Spark starts others when it plans again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shallow_mirror.streaming.runner.planning_daemons import CREATING, PLANNING, PlanningDaemons, end_daemons
from shallow_mirror.streaming.runner.pyarrow_alone import OWN_SESSION_VARIABLE

pytestmark = pytest.mark.spark

NAME = "one-row"


def register_source(spark: Any) -> None:
    """Register a data source of one row, which the workers need not import."""

    class OneRowReader(DataSourceReader):  # type: ignore[misc]
        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (5,)

    class OneRow(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: StructType) -> OneRowReader:
            return OneRowReader()

    spark.dataSource.register(OneRow)


def planning_processes() -> list[psutil.Process]:
    """Return the planning daemons below this process, and their workers."""
    return [process for process in psutil.Process().children(recursive=True) if not set(PLANNING).isdisjoint(process.cmdline())]


def test_spark_plans_again_after_its_planning_daemons_were_ended(spark: Any) -> None:
    register_source(spark)
    for _ in range(2):
        rows = spark.read.format(NAME).load().collect()
        assert [row.number for row in rows] == [5]
        processes = planning_processes()
        assert processes
        end_daemons(spark, CREATING)
        end_daemons(spark, PLANNING)
        _, alive = psutil.wait_procs(processes, timeout=20)
        assert not alive


def test_daemons_of_a_session_that_others_may_use_are_left_alone(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    register_source(spark)
    spark.read.format(NAME).load().collect()
    processes = planning_processes()
    monkeypatch.delenv(OWN_SESSION_VARIABLE)
    daemons = PlanningDaemons(spark)
    daemons.end_of_creation()
    daemons.end_of_planning()
    assert processes
    assert all(process.is_running() for process in processes)


def test_a_session_without_a_jvm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark Connect's; the variable may come from a process that started this one."""
    monkeypatch.setenv(OWN_SESSION_VARIABLE, "1")
    daemons = PlanningDaemons(object())
    daemons.end_of_creation()
    daemons.end_of_planning()
