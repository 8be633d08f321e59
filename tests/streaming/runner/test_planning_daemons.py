"""Daemons of workers that only planned are ended, and Spark starts others when it plans again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.streaming.runner import planning_daemons
from shallow_mirror.streaming.runner.planning_daemons import CREATING, PLANNING, end_daemons
from shallow_mirror.streaming.sources import planned_ranges
from shallow_mirror.types import PlannedRange, SourcePartition

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")

RANGE = PlannedRange(slot=0, source=SourcePartition("t", "id", 1), start=5, end=9, bytes_per_offset=10.0)
WORKER = "import time; print(flush=True); time.sleep(60)"


def session_of(pid: int | None) -> Any:
    jvm = None if pid is None else SimpleNamespace(pid=pid)
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))


def test_only_daemons_of_the_sessions_jvm_that_run_planning_workers_are_ended(tmp_path: Path) -> None:
    """The test process is the JVM; a daemon of tasks, and one of another parent, stay."""
    commands = [[planning_daemons._DAEMON, module] for module in (*PLANNING, "pyspark.worker")]
    children = [subprocess.Popen([sys.executable, "-c", WORKER, *words], stdout=subprocess.PIPE) for words in commands]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        assert end_daemons(session_of(1), PLANNING) == 0
        assert end_daemons(session_of(None), PLANNING) == 0
        assert end_daemons(session_of(os.getpid()), CREATING) == len(CREATING)
        assert end_daemons(session_of(os.getpid()), PLANNING[-1:]) == 1
        assert [child.wait(20) != 0 for child in children[:-1]] == [True] * len(PLANNING)
        assert children[-1].poll() is None
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.spark
def test_spark_plans_again_after_its_planning_daemons_were_ended(spark: Any) -> None:
    planned_ranges.register_planned_ranges(spark)
    expected = [("t", 5, 9)]
    for _ in range(2):
        rows = spark.read.format(planned_ranges.NAME).options(**planned_ranges.options_of([RANGE])).load().collect()
        assert [(row.topic, row.range_start, row.range_end) for row in rows] == expected
        assert end_daemons(spark, PLANNING) > 0
        give_up_at = time.monotonic() + 20
        while end_daemons(spark, PLANNING):
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
