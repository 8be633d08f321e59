"""Some minutes of `make faults`: kills at every step, and one or two rounds of every other fault, on real clusters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults import launch, process_faults, steps, storage_faults
from tests.faults.campaigns import KILL, SHORT_TRANSACTION_MS
from tests.faults.mirror_process import SPARK, WITHOUT_SPARK
from tests.faults.rounds import Fault, Scene
from tests.faults.steps import Step

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(600)]

Case = tuple[Fault, Step]

DRIVER, JVM, WORKER = process_faults.KillDriver(), process_faults.KillJvm(), process_faults.KillWorker()
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def no_fork_server_is_left() -> Iterator[None]:
    yield
    launch.stop_fork_server()


@contextmanager
def scene_of(two_clusters: Any, folder: Path, engine: str, **fields: Any) -> Iterator[Scene]:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    name = f"rounds{next(_numbers)}"
    with Scene(folder / "mirror", source, target, name=name, engine=engine, checks_meanwhile=True, **fields) as scene:
        yield scene


def assert_nothing_differs(scene: Scene, cases: Sequence[Case]) -> list[str]:
    """How the mirror came out of each."""
    done = [scene.round(fault, step) for fault, step in cases]
    checked = [one.checked.result() for one in done]
    assert [
        (one.step, both)
        for one, check in zip(done, checked, strict=True)
        if (both := (check.differences, one.left_behind)) != ((), ())
    ] == []
    assert sum(one.acknowledged for one in checked) > 0
    end = scene.finish()
    assert (end.differences, end.left_behind) == ((), ())
    assert end.records > 0
    return [one.ending for one in done]


def test_a_kill_at_every_step_loses_and_repeats_nothing(two_clusters: Any, tmp_path: Path) -> None:
    with scene_of(two_clusters, tmp_path, WITHOUT_SPARK) as scene:
        endings = assert_nothing_differs(scene, [(KILL, step) for step in steps.ALL])
    assert set(endings) == {"killed, started again"}


@pytest.mark.parametrize(
    ("transfer", "cases"),
    [
        (
            "direct",
            [
                (KILL, steps.RETURNED),
                (DRIVER, steps.PRODUCED),
                (JVM, steps.ENDED[0]),
                (WORKER, steps.RECEIPT),
                (KILL, steps.COMMITTED),
            ],
        ),
        ("through-spark", [(KILL, steps.PRODUCED), (KILL, steps.ENDED[1]), (KILL, steps.COMMITTED)]),
    ],
)
def test_a_kill_of_any_part_of_spark_loses_and_repeats_nothing(
    two_clusters: Any, tmp_path: Path, transfer: str, cases: Sequence[Case]
) -> None:
    with scene_of(two_clusters, tmp_path, SPARK, groups={"read": {"transfer": transfer}}) as scene:
        assert_nothing_differs(scene, cases)


def test_a_spark_checkpoint_that_is_gone_or_from_before_loses_and_repeats_nothing(two_clusters: Any, tmp_path: Path) -> None:
    old, none = storage_faults.CheckpointOfThePast(), storage_faults.CheckpointDeleted()
    with scene_of(two_clusters, tmp_path, SPARK) as scene:
        assert_nothing_differs(scene, [(old, steps.COMMITTED), (none, steps.DECIDED), (old, steps.COMMITTED)])


def test_a_mirror_that_stood_still_beyond_the_transaction_timeout_copies_again_and_once(
    two_clusters: Any, tmp_path: Path
) -> None:
    suspend = process_faults.Suspend(SHORT_TRANSACTION_MS / 1000 + 3)
    short = {"write": {"transaction_timeout_ms": SHORT_TRANSACTION_MS}}
    with scene_of(two_clusters, tmp_path, WITHOUT_SPARK, groups=short) as scene:
        assert_nothing_differs(scene, [(suspend, step) for step in (steps.ANSWERED, steps.DECIDED, steps.ENDED[0])])


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
