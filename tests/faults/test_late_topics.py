"""A topic that appears while the mirror runs, and a kill at every step from its first row to its first plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.faults.gate import Gate
from tests.faults.mirror_process import SPARK, WITHOUT_SPARK, MirrorProcess
from tests.faults.steps import Step
from tests.support import mirror_runs as runs

from shallow_mirror.config import MirrorConfig

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400)]

DECIDED = Step(name="the first row is decided", point="first_rows.decided")
SETTLED = Step(name="the first row holds", point="first_rows.settled")
REGISTERED = Step(name="the planner may plan it", point="registered.noted")
PLANNED = Step(name="Spark has logged the plan that it enters", point="Planned", after="registered.noted")
RANGED = Step(name="Spark has logged the plan of its first range", point="Planned", nth=2, after="registered.noted")


@pytest.mark.parametrize(
    ("engine", "steps"),
    [
        pytest.param(WITHOUT_SPARK, [DECIDED, SETTLED, REGISTERED, PLANNED, RANGED], id="without Spark"),
        pytest.param(SPARK, [PLANNED], id="Spark", marks=pytest.mark.long),
    ],
)
def test_a_late_topic_begins_at_its_first_offset_although_the_mirror_is_killed_before_anything_of_it_is_copied(
    two_clusters: Any, topic_name: str, tmp_path: Path, engine: str, steps: Sequence[Step]
) -> None:
    source, target, base = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
    runs.create_topic(source, base)
    late = [f"{base}.{number}" for number in range(len(steps))]
    topics = {"start": {rf"{base}\..*": "latest"}}
    include = [base, rf"{base}\..*"]
    settings = runs.config(tmp_path, source, target, include, topics=topics, tables=str(tmp_path / "tables"))
    conf = runs.conf_file(tmp_path, source, target, include, topics=topics, tables=str(tmp_path / "tables"))

    with Gate(tmp_path) as gate:
        for topic, step in zip(late, steps, strict=True):
            mirror = _start(tmp_path, conf, gate, engine)
            try:
                _copy_one_record(source, base, settings)
                gate.await_step(step)
                runs.create_topic(source, topic)
                runs.write(source, topic, [f"{number}" for number in range(3)])
                paused = gate.await_paused(runs.PATIENCE_S)
                assert paused is not None, mirror.log()[-3000:]
                assert paused.point == step.point
            finally:
                mirror.kill()
            gate.forget()
        mirror = _start(tmp_path, conf, gate, engine)
        try:
            for topic in late:
                runs.wait_for(f"the row of {topic}", lambda name=topic: (name, 0) in runs.positions(settings))  # type: ignore[misc]
                runs.write(source, topic, ["3"])
            for topic in late:
                runs.wait_for(f"all of {topic}", lambda name=topic: runs.positions(settings)[name, 0] == 4)  # type: ignore[misc]
        finally:
            mirror.kill()
    assert [runs.read_values(target, topic) for topic in late] == [["0", "1", "2", "3"]] * len(late)


def _start(folder: Path, conf: Path, gate: Gate, engine: str) -> MirrorProcess:
    return MirrorProcess(conf, gate.address, folder / "mirror.log", folder / "scratch", engine, {})


def _copy_one_record(source: str, topic: str, settings: MirrorConfig) -> None:
    """Until the query runs and the planner knows its topics."""
    before = runs.positions(settings).get((topic, 0), 0)
    runs.write(source, topic, ["x"])
    runs.wait_for("the copy of a topic that was there", lambda: runs.positions(settings).get((topic, 0), 0) > before)
