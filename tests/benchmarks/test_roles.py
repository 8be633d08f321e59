"""Which process of a mirror is which."""

from __future__ import annotations

import pytest
from benchmarks.roles import role


@pytest.mark.parametrize(
    ("command_line", "expected"),
    [
        ("/usr/bin/java -cp a.jar org.apache.spark.deploy.SparkSubmit pyspark-shell", "JVM"),
        (
            "python -m shallow_mirror.streaming.spark.worker_daemon pyspark.sql.streaming.python_streaming_source_runner",
            "planner",
        ),
        ("python -m shallow_mirror.streaming.spark.worker_daemon pyspark.worker", "workers"),
        ("python -m pyspark.daemon pyspark.sql.worker.create_data_source", "idle daemons"),
        ("python .venv/bin/shallow-mirror run mirror.yaml", "driver"),
    ],
)
def test_every_process_of_a_mirror_has_a_role(command_line: str, expected: str) -> None:
    assert role(command_line) == expected
