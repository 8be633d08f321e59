"""Some minutes of `make faults`: kills at every step, and one or two rounds of every other fault, on real clusters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults import process_faults, steps, storage_faults
from tests.faults.campaigns import KILL, SHORT_TRANSACTION_MS
from tests.faults.cases import Case, assert_nothing_differs
from tests.faults.mirror_process import SPARK, WITHOUT_SPARK
from tests.faults.rounds import Scene

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(600)]

JVM, OLD = process_faults.KillJvm(), storage_faults.CheckpointOfThePast()
_numbers = itertools.count()


@contextmanager
def scene_of(two_clusters: Any, folder: Path, engine: str, **fields: Any) -> Iterator[Scene]:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    name = f"rounds{next(_numbers)}"
    with Scene(folder / "mirror", source, target, name=name, engine=engine, checks_meanwhile=True, **fields) as scene:
        yield scene


def test_a_kill_at_every_step_loses_and_repeats_nothing(two_clusters: Any, tmp_path: Path) -> None:
    with scene_of(two_clusters, tmp_path, WITHOUT_SPARK) as scene:
        endings = assert_nothing_differs(scene, [(KILL, step) for step in steps.ALL])
    assert set(endings) == {"killed, started again"}


@pytest.mark.long
def test_the_death_of_spark_and_an_old_checkpoint_lose_and_repeat_nothing(two_clusters: Any, tmp_path: Path) -> None:
    """A round takes half a minute: `make faults` has the others."""
    cases: list[Case] = [(JVM, steps.ENDED[0]), (OLD, steps.COMMITTED)]
    with scene_of(two_clusters, tmp_path, SPARK) as scene:
        assert_nothing_differs(scene, cases)
        assert "SparkLostError: Spark's JVM exited" in (scene.folder / "mirror.log").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_kill_of_a_mirror_whose_payloads_go_through_spark_loses_and_repeats_nothing(
    two_clusters: Any, tmp_path: Path
) -> None:
    with scene_of(two_clusters, tmp_path, SPARK, groups={"read": {"transfer": "through-spark"}}) as scene:
        assert_nothing_differs(scene, [(KILL, steps.ENDED[1])])


@pytest.mark.long
def test_a_mirror_that_stood_still_beyond_the_transaction_timeout_copies_again_and_once(
    two_clusters: Any, tmp_path: Path
) -> None:
    suspend = process_faults.Suspend(SHORT_TRANSACTION_MS / 1000 + 3)
    short = {"write": {"transaction_timeout_ms": SHORT_TRANSACTION_MS}}
    with scene_of(two_clusters, tmp_path, WITHOUT_SPARK, groups=short) as scene:
        assert_nothing_differs(scene, [(suspend, step) for step in (steps.ANSWERED, steps.ENDED[0])])


@pytest.mark.long
def test_a_clock_that_jumps_changes_nothing(two_clusters: Any, tmp_path: Path) -> None:
    jumps = [process_faults.MoveClock(seconds) for seconds in (100_000.0, -200_000.0)]
    environment = process_faults.movable_clock(tmp_path / "mirror")
    with scene_of(two_clusters, tmp_path, WITHOUT_SPARK, environment=environment) as scene:
        endings = assert_nothing_differs(scene, [(jump, step) for jump in jumps for step in (steps.PRODUCED, steps.DECIDED)])
    assert set(endings) == {"went on"}


@pytest.mark.skipif(not storage_faults.may_mount(), reason="mounts file systems, which needs root")
def test_a_full_disk_and_a_read_only_map_are_waited_for(two_clusters: Any, tmp_path: Path) -> None:
    with storage_faults.small_disk(tmp_path / "mirror" / "tables"):
        with scene_of(two_clusters, tmp_path, WITHOUT_SPARK) as scene:
            cases: list[Case] = [(storage_faults.DiskFull(), steps.ANSWERED), (storage_faults.ReadOnlyMap(), steps.DECIDED)]
            endings = assert_nothing_differs(scene, cases)
    assert set(endings) == {"went on"}
