"""Pure: the steps of a fail-over and of its way back, in their order. Every step may be performed again after a crash."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shallow_mirror.config.failover_steps import Step as Step


class Way(enum.StrEnum):
    OUT = "fail-over"
    BACK = "fail-back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    step: Step
    does: str
    leaves: str
    outside: str | None = None
    """What somebody has to do elsewhere before the step can end; None: nothing."""


_OUT = (
    StepInfo(
        step=Step.CHECK,
        does="looks at {target} and the tables for everything that would stop a later step",
        leaves="nothing is in the way",
    ),
    StepInfo(
        step=Step.FENCE,
        does="ends the mirror {mirror} for good, and resolves its transactions at {target}",
        leaves="read_committed consumers wait for nothing; no late record comes",
    ),
    StepInfo(
        step=Step.ADMIT_WRITERS,
        does="deletes the Deny ACLs of the mirror at {target} (acls.read_only)",
        leaves="writers may write there",
    ),
    StepInfo(
        step=Step.MOVE_GROUPS,
        does="translates the newest recorded offset of each group and commits it at {target}",
        leaves="consumers and writers may start at {target}",
    ),
    StepInfo(
        step=Step.REPORT,
        does="counts, by group and partition, the records that are repeated and missing at most",
        leaves="the figures are in `failover status`",
    ),
)

_BACK = (
    StepInfo(
        step=Step.CHECK_BACK,
        does="looks at both clusters and the mirror for the way back",
        leaves="nothing is in the way",
        outside="start {source}, without writers and consumers of these topics",
    ),
    StepInfo(
        step=Step.KEEP,
        does="copies the records that only {source} has to topics of their own at {target}, and compares them",
        leaves="{source} has no record of these topics that {target} lacks",
    ),
    StepInfo(
        step=Step.DELETE,
        does="deletes the old topics at {source}, if nothing was written to them since",
        leaves="their names are free",
    ),
    StepInfo(
        step=Step.FILL,
        does="lets the mirror {back} create and fill them, with the offsets of {target}",
        leaves="{source} has all of {target} again",
        outside="run the mirror {back} as a service",
    ),
    StepInfo(
        step=Step.HAND_BACK,
        does="moves groups and writers back, with the steps of `migrate`: compared, exactly, without loss",
        leaves="the topics are in use at {source}",
        outside="stop and start writers and consumers when the steps say so",
    ),
)


def steps_of(way: Way) -> tuple[StepInfo, ...]:
    return _OUT if way is Way.OUT else _BACK
