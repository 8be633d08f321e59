"""Two mirrors with one id on real clusters: the second takes over, the first stops with exit code 3 and says who it was."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.mirror_runs import catch_up, create_topic

from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.config import MirrorConfig

CONF = """
mirror: fenced
source: {{alias: east, client: {{bootstrap.servers: "{source}"}}}}
target: {{alias: west, client: {{bootstrap.servers: "{target}"}}}}
topics: {{include: ["{topic}"]}}
tables: tables
checkpoint: {checkpoint}
trigger: 0 seconds
"""

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400)]


def write(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(100):
        producer.produce(topic, b"v", str(number).encode())
    producer.flush()


def start(folder: Path, conf: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shallow_mirror.cli", "run", conf, *options],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def wait_for_position(folder: Path, topic: str, offset: int) -> None:
    for _ in range(240):
        if (folder / "tables" / "offset_map" / "_delta_log").exists():
            positions = OffsetMap.open(str(folder / "tables")).positions()
            if any(source.topic == topic and position.offset >= offset for source, position in positions.items()):
                return
        time.sleep(0.5)
    raise AssertionError(f"position {offset} was not reached")


def test_a_second_mirror_takes_over_and_the_first_ends_with_3(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(CONF.format(source=source, target=target, topic=topic_name, checkpoint=name))
    write(source, topic_name)
    first = start(tmp_path, "first.yaml")
    try:
        wait_for_position(tmp_path, topic_name, 100)
        second = start(tmp_path, "second.yaml", "--available-now")
        _, second_said = second.communicate(timeout=150)
        assert second.returncode == 0, second_said[-3000:]
        write(source, topic_name)
        _, first_said = first.communicate(timeout=100)
        assert first.returncode == 3, first_said[-3000:]
        assert f"pid {second.pid}" in first_said
    finally:
        first.kill()
        first.wait()
    catch_up(MirrorConfig.load(tmp_path / "second.yaml"), spark)
    rows = OffsetMap.open(str(tmp_path / "tables")).settled_rows().to_pylist()
    data = [row for row in rows if row["kind"] == "data"]
    assert sum(row["record_count"] for row in data) == 200
    assert max(row["source_end"] for row in data) == 200
