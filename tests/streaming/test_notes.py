"""What a driver may conclude from the planner's note about the micro-batch that was just done."""

from __future__ import annotations

from typing import Any

import pytest

from shallow_mirror.streaming.notes import PlannerNote, planned_lag
from shallow_mirror.types import SourcePartition

A, B = SourcePartition("orders", "idA", 0), SourcePartition("orders", "idA", 1)


def note(**changes: Any) -> PlannerNote:
    return PlannerNote(**({"at_ms": 5000, "waiting_for": None, "since_ms": None, "lag_offsets": {A: 3, B: 4}} | changes))


def test_the_lag_of_a_plan_is_that_of_all_its_partitions() -> None:
    assert planned_lag(note(), since_ms=5000) == 7
    assert planned_lag(note(lag_offsets={}), since_ms=5000) == 0


@pytest.mark.parametrize("found", [None, note(waiting_for="brokers", since_ms=1, lag_offsets={}), note(at_ms=4999)])
def test_no_note_a_wait_and_a_note_of_an_earlier_run_say_nothing_about_the_lag(found: PlannerNote | None) -> None:
    assert planned_lag(found, since_ms=5000) is None
