"""Planted bugs of every kind are found, and nothing else is."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz import planted
from tests.fuzz.campaign import Bounds, Campaign
from tests.fuzz.child import tried
from tests.fuzz.targets import TARGETS

_FEW = 25

KINDS = {
    "crashing": "crash",
    "hanging": "hang",
    "waiting": "hang",
    "over_allocating": "over-allocation",
    "asking_for_the_moon": "over-allocation",
    "lying": "wrong output",
    "dying": "death",
}


def campaign_of(name: str, folder: Path) -> Campaign:
    bounds = Bounds(seconds=0.2, memory_bytes=1 << 24)
    return Campaign({name: planted.TARGETS[name]}, "tests.fuzz.planted", bounds, folder)


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
def test_a_planted_bug_is_found_and_its_input_kept_with_what_repeats_it(name: str, tmp_path: Path) -> None:
    campaign = campaign_of(name, tmp_path)
    while not campaign.findings:
        campaign.run_slice(name, 1.5)
    ((target_name, kind, _),) = campaign.findings
    assert (target_name, kind) == (name, KINDS[name])
    (kept,) = campaign.findings.values()
    assert len(kept.read_bytes()) < planted._BAD
    assert f'--repeat "{name}" {kept}' in kept.with_suffix(".txt").read_text()


@pytest.mark.thorough
def test_a_documented_error_is_no_finding(tmp_path: Path) -> None:
    campaign = campaign_of("refusing", tmp_path)
    campaign.run(1.5, 1)
    assert not campaign.findings
    assert campaign.inputs["refusing"] > 0


def test_the_same_seed_and_number_make_the_same_input_again_and_others_another_one() -> None:
    target = TARGETS["fetch by name"]
    numbers = range(len(target.corpus), len(target.corpus) + 40)
    made = [target.input(7, number) for number in numbers]
    assert made == [target.input(7, number) for number in numbers]
    assert made != [target.input(8, number) for number in numbers]
    assert [target.input(7, number) for number in range(len(target.corpus))] == list(target.corpus)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TARGETS)
def test_the_first_hostile_inputs_find_nothing(name: str) -> None:
    target = TARGETS[name]
    findings = [tried(target, number, target.input(0, number)) for number in range(len(target.corpus) + _FEW)]
    assert [finding for finding in findings if finding is not None] == []


@pytest.mark.thorough
def test_a_kept_input_can_be_repeated(tmp_path: Path) -> None:
    kept = tmp_path / "kept.bin"
    kept.write_bytes(TARGETS["receipt"].corpus[0])
    command = [sys.executable, "-m", "tests.fuzz.run", "--repeat", "receipt", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "nothing found\n")


def test_every_parser_has_inputs_that_it_takes() -> None:
    """A target whose corpus is refused from the start would look at nothing."""
    for target in TARGETS.values():
        outcomes = []
        for data in itertools.islice(target.corpus, 2):
            try:
                target.run(data)
            except target.documented:
                outcomes.append(False)
            else:
                outcomes.append(True)
        assert any(outcomes) or target.name == "frames", target.name
