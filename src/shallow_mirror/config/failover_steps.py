"""Pure: names of the steps of a fail-over and of its way back, in their order."""

from __future__ import annotations

import enum


class Step(enum.StrEnum):
    CHECK = "check"
    FENCE = "fence the mirror"
    ADMIT_WRITERS = "admit writers"
    MOVE_GROUPS = "move groups"
    REPORT = "report"
    CHECK_BACK = "check the way back"
    KEEP = "keep diverged records"
    DELETE = "delete old topics"
    FILL = "fill old topics"
    HAND_BACK = "hand back"

    @property
    def is_of_way_back(self) -> bool:
        order = list(Step)
        return order.index(self) >= order.index(Step.CHECK_BACK)
