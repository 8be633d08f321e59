"""Pure: estimate of the duration of a move, from measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shallow_mirror.migration.steps import MOVE, Step

HAND_OVER_S = 3.0
"""A running mirror reads its controls so often; longer where its tables are far away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    backlog_s: float | None
    """None if no pace is known."""
    verify_s: float | None
    """For comparing what both clusters hold, by a comparison of the last of it; None if nothing could be compared."""
    micro_batch_s: float | None
    """Of the last micro-batches."""
    compare_s: float
    """For a comparison of nothing, done for this plan."""
    groups_s: float
    """For a translation without a commit, done for this plan."""
    trigger_s: float
    quiet_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """`seconds` None: it depends on somebody outside, or nothing was measured; `basis` says which."""

    seconds: float | None
    basis: str


def step_times(measured: Measured) -> Mapping[Step, StepTime]:
    """Return the time of each step that takes any."""
    copying = None if measured.micro_batch_s is None else measured.trigger_s + measured.micro_batch_s
    rest = measured.compare_s + measured.groups_s
    return {
        Step.CATCH_UP: _by_pace(measured.backlog_s, "backlog by the pace of the mirror, or of reading"),
        Step.VERIFY: _by_pace(measured.verify_s, "what both clusters hold, by a comparison of the last of it for this plan"),
        Step.STOP_WRITERS: StepTime(seconds=measured.quiet_s, basis="writers.quiet, after the last record"),
        Step.STOP_GROUPS: StepTime(seconds=0.0, basis="they stop with the writers"),
        Step.COPY_REST: StepTime(seconds=copying, basis="trigger, and the last micro-batches"),
        Step.VERIFY_REST: StepTime(seconds=measured.compare_s, basis="measured for this plan, without records"),
        Step.COMMIT_GROUPS: StepTime(seconds=measured.groups_s, basis="measured for this plan, without commits"),
        Step.POINT_OF_NO_RETURN: StepTime(
            seconds=max(0.0, HAND_OVER_S - rest), basis="the mirror reads its controls every 3 s, beside the steps before"
        ),
    }


def _by_pace(seconds: float | None, basis: str) -> StepTime:
    return StepTime(seconds=seconds, basis=basis if seconds is not None else "too little data to measure a pace")


def downtime_s(times: Mapping[Step, StepTime]) -> float | None:
    """Return how long the writers are stopped; None if a part of it is not known."""
    parts = [times[info.step].seconds for info in MOVE if info.is_downtime and info.step in times]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
