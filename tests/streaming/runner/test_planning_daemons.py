"""Daemons of workers that only planned are ended, and Spark starts others when it plans again."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from shallow_mirror.streaming.runner.planning_daemons import CREATING, PLANNING, PlanningDaemons, end_daemons
from shallow_mirror.streaming.runner.pyarrow_alone import OWN_SESSION_VARIABLE
from shallow_mirror.streaming.sources import planned_ranges
from shallow_mirror.types import PlannedRange, SourcePartition

pytestmark = pytest.mark.spark

RANGE = PlannedRange(slot=0, source=SourcePartition("t", "id", 1), start=5, end=9, bytes_per_offset=10.0)


def planning_processes() -> list[psutil.Process]:
    """Return the planning daemons below this process, and their workers."""
    return [process for process in psutil.Process().children(recursive=True) if not set(PLANNING).isdisjoint(process.cmdline())]


def test_spark_plans_again_after_its_planning_daemons_were_ended(spark: Any) -> None:
    planned_ranges.register_planned_ranges(spark)
    for _ in range(2):
        rows = spark.read.format(planned_ranges.NAME).options(**planned_ranges.options_of([RANGE])).load().collect()
        assert [(row.topic, row.range_start, row.range_end) for row in rows] == [("t", 5, 9)]
        processes = planning_processes()
        assert processes
        end_daemons(spark, CREATING)
        end_daemons(spark, PLANNING)
        _, alive = psutil.wait_procs(processes, timeout=20)
        assert not alive


def test_daemons_of_a_session_that_others_may_use_are_left_alone(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_ranges.register_planned_ranges(spark)
    spark.read.format(planned_ranges.NAME).options(**planned_ranges.options_of([RANGE])).load().collect()
    processes = planning_processes()
    monkeypatch.delenv(OWN_SESSION_VARIABLE)
    daemons = PlanningDaemons(spark)
    daemons.end_of_creation()
    daemons.end_of_planning()
    assert processes
    assert all(process.is_running() for process in processes)
