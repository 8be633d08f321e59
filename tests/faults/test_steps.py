from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.faults.steps import ALL, COMMITTED, DECIDED, ENDED, INITIALISED, Awaited, Step

MICRO_BATCH = ("Planned", "TakeDecision", *["task.initialised"] * 3, "RunSlots", "Decide", *["EndTxn"] * 3, "Returned")


def reached(step: Step, points: Sequence[str]) -> list[int]:
    awaited = Awaited(step)
    return [index for index, point in enumerate(points) if awaited.is_reached_by(point)]


@pytest.mark.parametrize(
    ("step", "index"),
    [(DECIDED, 6), (INITIALISED, 2), (ENDED[0], 7), (ENDED[1], 8), (ENDED[2], 9), (COMMITTED, len(MICRO_BATCH))],
)
def test_a_step_is_reached_once_and_at_its_place(step: Step, index: int) -> None:
    assert reached(step, MICRO_BATCH * 3) == [index]


def test_passings_count_from_the_point_that_comes_before() -> None:
    too_few = ("EndTxn", "EndTxn", "Decide", "EndTxn", "Decide", "EndTxn", "EndTxn")
    assert reached(ENDED[1], too_few) == [6]


def test_every_step_has_a_name_of_its_own() -> None:
    assert len({step.name for step in ALL}) == len(ALL)
