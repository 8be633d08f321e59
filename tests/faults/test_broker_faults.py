"""A few of the brokers' faults; all of them, many times over and for ten minutes, are the campaigns of `make faults`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.faults.broker_faults import Away, Blow, OneOfThree, OnlyBroker, Wall
from tests.faults.cases import Case, assert_nothing_differs
from tests.faults.mirror_process import WITHOUT_SPARK
from tests.faults.network_faults import SOURCE, TARGET, NetworkScene
from tests.faults.preserved_offsets import QUICK_ELECTIONS
from tests.faults.rounds import BETWEEN_MICRO_BATCHES
from tests.faults.steps import ANSWERED, DECIDED, ENDED, PRODUCED
from tests.faults.three_brokers import KillOfThree, Role, ThreeBrokerScene

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(900)]

AWAY_S = 15.0


def assert_survived(
    folder: Path, cases: Sequence[Case], *, target_brokers: int = 1, properties: Mapping[str, str] | None = None
) -> None:
    """Without a restart, and no record is lost or repeated. `properties`: of all brokers."""
    opened = NetworkScene(WITHOUT_SPARK, target_brokers, checks_meanwhile=False, properties=properties or {})
    with opened(folder, "brokers", 1) as scene:
        assert set(assert_nothing_differs(scene, cases)) == {"went on"}


@pytest.mark.long
def test_the_only_broker_of_either_side_goes_and_comes_back(tmp_path: Path) -> None:
    kill, stop = Blow.KILL, Blow.STOP
    cases: list[Case] = [
        (OnlyBroker(TARGET, kill), DECIDED),
        (OnlyBroker(TARGET, stop), ENDED[0]),
        (OnlyBroker(SOURCE, kill), PRODUCED),
    ]
    assert_survived(tmp_path, cases)


def test_a_target_of_three_brokers_loses_a_leader_and_coordinator_under_load(tmp_path: Path) -> None:
    assert_survived(tmp_path, [(OneOfThree(TARGET, Blow.KILL), ANSWERED)], target_brokers=3, properties=QUICK_ELECTIONS)


@pytest.mark.long
def test_one_of_three_brokers_of_the_target_is_paused_or_stopped_under_load(tmp_path: Path) -> None:
    cases: list[Case] = [(OneOfThree(TARGET, Blow.PAUSE), PRODUCED), (OneOfThree(TARGET, Blow.STOP), DECIDED)]
    assert_survived(tmp_path, cases, target_brokers=3)


@pytest.mark.long
def test_clusters_of_three_brokers_lose_the_source_s_leader_and_the_target_s_controller_under_load(tmp_path: Path) -> None:
    cases: list[Case] = [(KillOfThree(SOURCE, Role.LEADER), PRODUCED), (KillOfThree(TARGET, Role.CONTROLLER), DECIDED)]
    with ThreeBrokerScene(WITHOUT_SPARK)(tmp_path, "three", 1) as scene:
        assert set(assert_nothing_differs(scene, cases)) == {"went on"}


@pytest.mark.long
def test_a_cluster_that_is_unreachable_is_named_in_status_and_work_resumes_by_itself(tmp_path: Path) -> None:
    cases: list[Case] = [
        (Away(TARGET, Wall.STALL, AWAY_S), DECIDED),
        (Away(SOURCE, Wall.REFUSE, AWAY_S), BETWEEN_MICRO_BATCHES),
    ]
    assert_survived(tmp_path, cases)
