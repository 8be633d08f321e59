"""Pure: the steps of a wave, in their order: what each needs, does and leaves, and who acts outside.

Both directions have the same steps up to the point of no return: a move copies with the mirror, a rollback with the reverse
mirror. Every step may be performed again after a crash: its row in the table is written when what it leaves is so.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from shallow_mirror.config.migration_steps import Step as Step


class Direction(enum.StrEnum):
    MOVE = "move"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """`outside`: what somebody has to do elsewhere before the step can end; None: nothing.

    `is_downtime`: neither cluster takes records of the writers until the point of no return.
    """

    step: Step
    needs: str
    does: str
    leaves: str
    outside: str | None = None
    is_downtime: bool = False


_SHARED = (
    StepInfo(
        step=Step.CHECK,
        needs="both clusters answer",
        does="looks for everything that would stop a later step",
        leaves="nothing is in the way",
    ),
    StepInfo(
        step=Step.CATCH_UP,
        needs="the mirror runs",
        does="waits until the mirror is close to the log ends",
        leaves="what is left is copied in seconds",
        outside="keep the mirror {mirror} running",
    ),
    StepInfo(
        step=Step.VERIFY,
        needs="the backlog is copied",
        does="compares both clusters",
        leaves="no difference up to a recorded position",
    ),
    StepInfo(
        step=Step.STOP_WRITERS,
        needs="no difference",
        does="watches the log ends; with writers.stop: deny it creates Deny Write ACLs, recorded before",
        leaves="no log end moves, and no transaction is open",
        outside="stop the writers of {topics} at {origin}",
        is_downtime=True,
    ),
    StepInfo(
        step=Step.STOP_GROUPS,
        needs="the writers have stopped",
        does="watches the groups",
        leaves="no group has a member",
        outside="stop the consumers of {groups} at {origin}",
        is_downtime=True,
    ),
    StepInfo(
        step=Step.COPY_REST,
        needs="nothing is written or read",
        does="waits for the mirror",
        leaves="the positions of the mirror are the log ends",
        outside="keep the mirror {mirror} running",
        is_downtime=True,
    ),
    StepInfo(
        step=Step.HAND_OVER,
        needs="everything is copied",
        does="asks the mirror to plan nothing of these topics any more",
        leaves="the request is in its table `controls`",
        is_downtime=True,
    ),
    StepInfo(
        step=Step.VERIFY_REST,
        needs="everything is copied",
        does="compares what was copied since the first comparison",
        leaves="no difference in anything",
        is_downtime=True,
    ),
    StepInfo(
        step=Step.COMMIT_GROUPS,
        needs="no group has a member",
        does="translates the committed offsets and commits them at {other}",
        leaves="each group continues with its next record",
        is_downtime=True,
    ),
    StepInfo(
        step=Step.POINT_OF_NO_RETURN,
        needs="the mirror has confirmed the hand-over; log ends and groups are as they were",
        does="records where the logs of both clusters end",
        leaves="writers and consumers may start at {other}; abort is not possible any more",
        is_downtime=True,
    ),
)

_ADMIT_WRITERS = StepInfo(
    step=Step.ADMIT_WRITERS,
    needs="the log ends of both clusters are recorded",
    does="deletes the Deny ACLs that keep writers from writing at {other}",
    leaves="writers may write there",
)

MOVE: tuple[StepInfo, ...] = (
    *_SHARED,
    _ADMIT_WRITERS,
    StepInfo(
        step=Step.PREPARE_REVERSE,
        needs="the recorded log ends",
        does="registers them as the positions of the reverse mirror",
        leaves="the reverse mirror copies exactly what is written after the move",
    ),
    StepInfo(
        step=Step.START_REVERSE,
        needs="its positions",
        does="starts the reverse mirror, or waits for whoever does (reverse.start)",
        leaves="the way back is open",
        outside="run `shallow-mirror run {reverse}` as a service",
    ),
    StepInfo(step=Step.REPORT, needs="all of it", does="reports what was moved", leaves="the wave has moved"),
)

ROLLBACK: tuple[StepInfo, ...] = (
    *_SHARED,
    _ADMIT_WRITERS,
    StepInfo(step=Step.REPORT, needs="all of it", does="reports what came back", leaves="the wave is back"),
)


def steps_of(direction: Direction) -> tuple[StepInfo, ...]:
    return MOVE if direction is Direction.MOVE else ROLLBACK


def is_before_point_of_no_return(done: Collection[Step]) -> bool:
    return Step.POINT_OF_NO_RETURN not in done


def reopened(done: Collection[Step], first: Step) -> list[Step]:
    """Return those of `done` that count no more once `first` has to be done again: it and all behind it."""
    order = [info.step for info in MOVE]
    return [step for step in done if step not in order or order.index(step) >= order.index(first)]
