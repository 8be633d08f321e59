"""Which process is which, and what of many looks is shown."""

from __future__ import annotations

import pytest
from benchmarks.memory import role, table


@pytest.mark.parametrize(
    ("command_line", "expected"),
    [
        ("/usr/bin/java -cp a.jar org.apache.spark.deploy.SparkSubmit pyspark-shell", "JVM"),
        ("python -m pyspark.sql.streaming.python_streaming_source_runner pyspark.sql.streaming", "planner"),
        ("python -m shallow_mirror.streaming.worker_daemon pyspark.worker", "tasks"),
        ("python -m pyspark.daemon pyspark.sql.worker.create_data_source", "idle daemons"),
        ("python .venv/bin/shallow-mirror run mirror.yaml", "driver"),
    ],
)
def test_every_process_of_a_mirror_has_a_role(command_line: str, expected: str) -> None:
    assert role(command_line) == expected


def test_growth_shows_as_medians_that_rise_from_left_to_right() -> None:
    looks = [{"JVM": 100.0 + at // 2, "all": 200.0 + at // 2} for at in range(12)]
    assert [line.split() for line in table(looks)] == [
        ["JVM", *(str(100 + at) for at in range(6))],
        ["all", *(str(200 + at) for at in range(6))],
    ]
