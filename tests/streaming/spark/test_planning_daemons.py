"""Daemons of workers that only planned are ended, and Spark starts others when it plans again."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shallow_mirror.streaming.spark import planning_daemons
from shallow_mirror.streaming.spark.planning_daemons import CREATING, PLANNING, PlanningDaemons, end_daemons
from shallow_mirror.streaming.spark.pyarrow_alone import OWN_SESSION_VARIABLE

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
    return [process for process in psutil.Process().children(recursive=True) if _is_planning(process)]


def _is_planning(process: psutil.Process) -> bool:
    try:
        return not set(PLANNING).isdisjoint(process.cmdline())
    except psutil.NoSuchProcess:  # one that has ended, and that Spark's JVM has not waited for yet
        return False


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


def test_a_daemon_is_ended_once_no_query_of_the_process_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN_SESSION_VARIABLE, "1")
    session = SimpleNamespace(_jvm=None)
    ended: list[set[str]] = []

    def take_ended() -> list[set[str]]:
        taken, ended[:] = [*ended], []
        return taken

    monkeypatch.setattr(planning_daemons, "end_daemons", lambda _spark, modules: ended.append(set(modules)))
    with PlanningDaemons(session) as first:
        first.end_of_creation()
        assert take_ended() == [set(CREATING)]
        with PlanningDaemons(session) as second:
            first.end_of_planning()
            assert take_ended() == []  # the second one has only begun
            second.end_of_creation()
            assert take_ended() == [set(CREATING)]
            second.end_of_planning()
            second.end_of_planning()
            assert take_ended() == [set(PLANNING)]
        with pytest.raises(ValueError, match="before its plan"), PlanningDaemons(session):
            raise ValueError("it ends before its plan")
        with PlanningDaemons(session) as next_attempt:
            next_attempt.end_of_planning()
            assert take_ended() == [set(PLANNING)]


def test_daemons_of_a_session_that_others_may_use_are_left_alone(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    register_source(spark)
    spark.read.format(NAME).load().collect()
    processes = planning_processes()
    monkeypatch.delenv(OWN_SESSION_VARIABLE)
    with PlanningDaemons(spark) as daemons:
        daemons.end_of_creation()
        daemons.end_of_planning()
    assert processes
    assert all(process.is_running() for process in processes)


def test_a_session_without_a_jvm_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark Connect's; the variable may come from a process that started this one."""
    monkeypatch.setenv(OWN_SESSION_VARIABLE, "1")
    with PlanningDaemons(object()) as daemons:
        daemons.end_of_creation()
        daemons.end_of_planning()
