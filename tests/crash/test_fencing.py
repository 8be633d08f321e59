"""Two mirrors with one id on real clusters: the second takes over, the first stops with exit code 3 and says who it was."""

from __future__ import annotations

import subprocess
import sys
import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.mirror_runs import create_topic, killed_at_last, wait_for

from shallow_mirror.checkpoints import OffsetMap

CONF = """
mirror: {mirror}
source: {{alias: east, client: {{bootstrap.servers: "{source}"}}}}
target: {{alias: west, client: {{bootstrap.servers: "{target}"}}}}
topics: {{include: ["{topic}"]}}
tables: tables
checkpoint: {checkpoint}
trigger: 0 seconds
"""

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(400)]


def write(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce(topic, b"v", str(number).encode())
    producer.flush()


def running(module: str, conf: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, "run", str(conf)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    return killed_at_last(process)


def run_epoch_of(folder: Path) -> int:
    recorded = OffsetMap.open(str(folder / "tables")).recorded()
    return 0 if recorded is None else recorded.run_epoch


def wait_for_position(folder: Path, topic: str, offset: int) -> None:
    def is_reached() -> bool:
        if not (folder / "tables" / "offset_map" / "_delta_log").exists():
            return False
        positions = OffsetMap.open(str(folder / "tables")).positions()
        return any(source.topic == topic and position.offset >= offset for source, position in positions.items())

    wait_for(f"position {offset}", is_reached)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param("tests.object_store.mirror_main", id="without Spark"),
        pytest.param("shallow_mirror.cli", id="Spark", marks=[pytest.mark.spark, pytest.mark.long]),
    ],
)
def test_a_second_mirror_takes_over_and_the_first_ends_with_3(
    two_clusters: Any, topic_name: str, tmp_path: Path, module: str
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    mirror = f"fenced-{uuid.uuid4().hex[:8]}"  # the target is shared with other tests
    for name in ("first", "second"):
        document = CONF.format(mirror=mirror, source=source, target=target, topic=topic_name, checkpoint=name)
        (tmp_path / f"{name}.yaml").write_text(document)
    write(source, topic_name)
    with running(module, tmp_path / "first.yaml") as first:
        wait_for_position(tmp_path, topic_name, 100)
        with running(module, tmp_path / "second.yaml") as second:
            wait_for("the second mirror", lambda: run_epoch_of(tmp_path) == 2)
            write(source, topic_name)
            _, first_said = first.communicate(timeout=100)
            assert first.returncode == 3, first_said[-3000:]
            assert f"pid {second.pid}" in first_said
            wait_for_position(tmp_path, topic_name, 200)
            second.terminate()
            _, second_said = second.communicate(timeout=100)
            assert second.returncode == 0, second_said[-3000:]
    rows = OffsetMap.open(str(tmp_path / "tables")).settled_rows().to_pylist()
    data = [row for row in rows if row["kind"] == "data"]
    assert sum(row["record_count"] for row in data) == 200
    assert max(row["source_end"] for row in data) == 200
