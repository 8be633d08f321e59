"""Pure: names of the steps of a migration, in their order."""

from __future__ import annotations

import enum


class Step(enum.StrEnum):
    CHECK = "check"
    CATCH_UP = "catch up"
    VERIFY = "verify"
    STOP_WRITERS = "stop writers"
    STOP_GROUPS = "stop groups"
    COPY_REST = "copy the rest"
    HAND_OVER = "hand over"
    VERIFY_REST = "verify the rest"
    COMMIT_GROUPS = "commit groups"
    POINT_OF_NO_RETURN = "point of no return"
    ADMIT_WRITERS = "admit writers"
    PREPARE_REVERSE = "prepare reverse mirror"
    START_REVERSE = "start reverse mirror"
    REPORT = "report"

    def is_behind(self, other: Step) -> bool:
        order = list(Step)
        return order.index(self) > order.index(other)


ONLY_OF_MOVES = frozenset({Step.PREPARE_REVERSE, Step.START_REVERSE})
"""A rollback does not have them."""
