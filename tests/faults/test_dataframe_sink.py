"""A query with a DataFrame sink is killed at every step, and brokers are restarted under it; a reader compares all records."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.streaming.dataframes.test_on_brokers import PARTITIONS, Topic
from tests.support import sink_program
from tests.support.mirror_runs import own_spark_environment

from shallow_mirror.local_kafka.node import LocalKafka

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1500)]

DRIVER_STEPS = ["TakeDecision", "RunSlots", "RefuseHangingTxns", "Decide", "EndTxn", "AwaitVisible", "Settled"]
TASK_STEPS = ["task.initialised", "task.added", "task.produced", "task.receipt"]
ROWS = 300


class Killed:
    """A topic, and a query that writes files to it."""

    def __init__(self, topic: Topic, folder: Path) -> None:
        self.topic, self._folder = topic, folder
        (folder / "rows").mkdir()
        self._written = 0

    def add_files(self) -> None:
        """Add a micro-batch of two tasks: one writes to partition 0, the other to the rest. Values rise."""
        ids = range(self._written, self._written + ROWS)
        for name, chosen in (("first", [i for i in ids if not i % PARTITIONS]), ("rest", [i for i in ids if i % PARTITIONS])):
            partitions = pa.array([i % PARTITIONS for i in chosen], pa.int32())
            table = pa.table({"value": [f"{i:08}" for i in chosen], "partition": partitions})
            pq.write_table(table, self._folder / "rows" / f"{self._written:08}-{name}.parquet")
        self._written += ROWS

    def start(self, **job: Any) -> subprocess.Popen[bytes]:
        sink: Mapping[str, Any] = {
            "name": self.topic.name,
            "client": {"bootstrap.servers": self.topic.bootstrap},
            "topic": self.topic.name,
            "slots": 4,
        }
        document = json.dumps({"folder": str(self._folder), "rows": str(self._folder / "rows"), "sink": sink, **job})
        with (self._folder / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, sink_program.__file__, document],
                env=own_spark_environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run(self, **job: Any) -> int:
        process = self.start(**job)
        try:
            return process.wait(300)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def compare(self) -> None:
        """Require every value once, and of each partition in order."""
        values: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        for partition, _, value, _, _ in self.topic.read():
            values[partition].append((value or b"").decode())
        for partition, got in values.items():
            assert got == [f"{i:08}" for i in range(self._written) if i % PARTITIONS == partition]


@pytest.fixture
def killed(target_cluster: LocalKafka, topic_name: str, tmp_path: Path) -> Killed:
    return Killed(Topic(target_cluster, topic_name, tmp_path / "tables"), tmp_path)


def test_kills_at_every_step_lose_repeat_and_reorder_nothing(killed: Killed, tmp_path: Path) -> None:
    killed.add_files()
    assert killed.run() == 0
    for number, point in enumerate([*DRIVER_STEPS, *TASK_STEPS]):
        killed.add_files()
        killed.add_files()
        marks = tmp_path / f"marks-{number}"
        marks.mkdir()
        # Also the second micro-batch, and of a start that has something to resolve.
        assert killed.run(point=point, passes=1 + number % 2, marks=str(marks)) == -signal.SIGKILL
    assert killed.run() == 0
    killed.compare()


def test_a_broker_that_is_killed_again_and_again_only_delays(topic_name: str, tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with LocalKafka(tmp_path / "kafka") as node:
        killed = Killed(Topic(node, topic_name, tmp_path / "tables"), tmp_path)
        for _ in range(12):
            killed.add_files()
        process = killed.start()
        try:
            for _ in range(4):
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(8)
                node.kill()
                node.start()
            assert process.wait(400) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        killed.compare()
