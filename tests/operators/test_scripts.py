"""Scripts of operators' actions against strict clusters in memory; more of them with `make faults FAULTS="operators"`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operators.run import explained
from tests.operators.scripts import perform, script_of

SEEDS = range(60)


@pytest.fixture(autouse=True)
def _without_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.thorough
def test_no_sequence_of_actions_loses_a_record_or_ends_without_a_way_on(tmp_path: Path) -> None:
    kills = remedies = 0
    for seed in SEEDS:
        done = perform(script_of(seed), tmp_path / "world")
        assert done.finding is None, explained(seed, done.finding, tmp_path / "world")
        kills, remedies = kills + done.kills, remedies + done.remedies
    assert kills > 0
    assert remedies > 0
