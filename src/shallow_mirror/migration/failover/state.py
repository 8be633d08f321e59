"""Pure: the state of a fail-over, from the rows of its table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shallow_mirror.checkpoints.rows import MigrationRow
from shallow_mirror.migration.failover.steps import Step, StepInfo, Way, steps_of
from shallow_mirror.migration.hooks.hook_state import HOOK_BEGUN, HOOK_DONE, HOOK_UNDONE, NO_HOOKS, HookState
from shallow_mirror.migration.state import BEGUN, DONE, REOPENED, WAITING, ConductorState, conductor_of

ABORTING, ABORTED_OUT, ABORT_REFUSED = "aborting", "aborted", "abort-refused"
"""Events: the fail-over is taken back, after everything was checked; it was; it was not, because the target was used meanwhile.
A command that was killed behind the first one is continued."""

KEEPING = "keeping"
"""Event: `detail` has the ranges (`writes`) that are copied next: a command that was killed is continued with the same ones."""

FILLING = "filling"
"""Event: the mirror that fills the old topics from now on; `detail` has its id (`mirror`) and its `tables`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverState:
    done: Mapping[Step, Mapping[str, Any]] = field(default_factory=dict)
    """The steps that are done, with what they found."""
    done_at: Mapping[Step, datetime] = field(default_factory=dict)
    begun_at: Mapping[Way, datetime] = field(default_factory=dict)
    """The first row of each way."""
    mirror: str | None = None
    """The one that is ended, or may be; None: nothing was begun, or no row says which one."""
    keeping: Sequence[Mapping[str, Any]] = ()
    """Ranges of the old source that are, or were, copied."""
    filled_by: Sequence[Mapping[str, Any]] = ()
    """Mirrors back that have filled old topics or do so, the last one at the end."""
    filling: Mapping[str, Any] | None = None
    """The one that does so; None: the names are not free, or no row says which one (up to release 0.2.0)."""
    hooks: HookState = NO_HOOKS
    waiting: Mapping[str, Any] | None = None
    """What the open step waits for, and since when; None: it has not said that it waits."""
    conductor: ConductorState | None = None
    is_aborting: bool = False
    """An abort has begun, and has not ended."""
    aborted_at: datetime | None = None
    """When the last fail-over was aborted."""

    @property
    def is_failed_over(self) -> bool:
        """Return whether consumers and writers may have started at the target."""
        return Step.MOVE_GROUPS in self.done

    @property
    def is_back(self) -> bool:
        return Step.HAND_BACK in self.done

    @property
    def phase(self) -> str:
        if self.is_back:
            return "failed back"
        if Way.BACK in self.begun_at:
            return "failing back"
        if Step.REPORT in self.done:
            return "failed over"
        return "failing over" if self.begun_at else "at the source"

    def next_step(self, way: Way) -> StepInfo | None:
        """Return the step that is performed next; None if all of the way are done."""
        if steps_of(way)[-1].step in self.done:
            return None  # also one of an earlier release, which had fewer steps
        return next((info for info in steps_of(way) if info.step not in self.done), None)


def state_of(rows: Iterable[MigrationRow]) -> FailoverState:
    rows = tuple(rows)
    done: dict[Step, Mapping[str, Any]] = {}
    done_at: dict[Step, datetime] = {}
    begun_at: dict[Way, datetime] = {}
    keeping: list[Mapping[str, Any]] = []
    filled_by: list[Mapping[str, Any]] = []
    filling: Mapping[str, Any] | None = None
    hooks = NO_HOOKS
    waiting: Mapping[str, Any] | None = None
    mirror, is_aborting, aborted_at = None, False, None
    for row in rows:
        if not row.wave:
            continue
        if row.event in (ABORTING, ABORTED_OUT, ABORT_REFUSED):
            is_aborting = row.event == ABORTING
            if row.event == ABORTED_OUT:
                mirror, aborted_at, waiting, hooks = None, row.at, None, hooks.aborted()
                for forgotten in (done, done_at, begun_at):
                    forgotten.clear()
            continue
        begun_at.setdefault(Way(row.wave), row.at)
        waiting = row.detail if row.event == WAITING else None
        if row.event == BEGUN and row.wave == Way.OUT:
            mirror = row.detail.get("mirror")
        if row.event == DONE:
            done[Step(row.step)], done_at[Step(row.step)] = row.detail, row.at
        elif row.event == REOPENED:
            order = [info.step for info in steps_of(Way(row.wave))]
            for step in order[order.index(Step(row.step)) :]:
                done.pop(step, None)
            filling = None
            hooks = hooks.reopened(row.step, list(Step))
        elif row.event in (HOOK_BEGUN, HOOK_DONE, HOOK_UNDONE):
            hooks = hooks.after(row)
        elif row.event == KEEPING:
            keeping += row.detail["writes"]
        elif row.event == FILLING:
            filling = row.detail
            filled_by.append(filling)
    return FailoverState(
        done=done,
        done_at=done_at,
        begun_at=begun_at,
        mirror=done.get(Step.FENCE, {}).get("mirror", mirror),
        keeping=tuple(keeping),
        filled_by=tuple(filled_by),
        filling=filling,
        hooks=hooks,
        waiting=waiting,
        conductor=conductor_of(rows),
        is_aborting=is_aborting,
        aborted_at=aborted_at,
    )
