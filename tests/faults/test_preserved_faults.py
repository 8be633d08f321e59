"""A few rounds of the campaigns that harm mirrors with preserved offsets: `make faults` has the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.faults.broker_faults import Blow, OneOfThree
from tests.faults.campaigns import PRESERVED_BROKERS, PRESERVED_MIRRORS
from tests.faults.cases import Case, assert_nothing_differs
from tests.faults.network_faults import TARGET
from tests.faults.several_mirrors import CASES, NewerKilled, OlderContinues, OtherTables, StartedAtOnce, Stopped
from tests.faults.steps import ANSWERED, PRODUCED


def test_each_case_of_several_runs_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter((fault.name, step.name) for fault, step in CASES).items() if count > 1] == []


@pytest.mark.brokers
@pytest.mark.timeout(600)
@pytest.mark.long
def test_older_runs_behind_the_newest_one_s_back_change_no_offset(tmp_path: Path) -> None:
    cases: list[Case] = [
        (OlderContinues(Stopped.NOTHING), PRODUCED),
        (OlderContinues(Stopped.ALL, 2), PRODUCED),
        (StartedAtOnce(2), PRODUCED),
        (NewerKilled(with_its_tasks=False), ANSWERED),
        (OtherTables(has_same_id=False), PRODUCED),
    ]
    with PRESERVED_MIRRORS.open(tmp_path, "several", 1) as scene:
        endings = assert_nothing_differs(scene, cases)
    assert endings == [*["superseded, ended with exit code 3"] * 4, "went on"]


@pytest.mark.brokers
@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_failover_of_the_target_changes_no_offset(tmp_path: Path) -> None:
    cases: list[Case] = [(OneOfThree(TARGET, Blow.KILL), PRODUCED), (OneOfThree(TARGET, Blow.PAUSE), ANSWERED)]
    with PRESERVED_BROKERS.open(tmp_path, "failover", 1) as scene:
        assert set(assert_nothing_differs(scene, cases)) == {"went on"}
