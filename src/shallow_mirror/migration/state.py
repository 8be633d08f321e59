"""Pure: state of a migration, from the rows of its table."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from shallow_mirror.checkpoints.rows import ENDED, TAKEN_OVER, MigrationRow
from shallow_mirror.migration.hooks.hook_state import HOOK_BEGUN, HOOK_DONE, HOOK_UNDONE, NO_HOOKS, HookState
from shallow_mirror.migration.steps import Direction, Step, StepInfo, is_before_point_of_no_return, reopened, steps_of

BEGUN, DONE, REOPENED, DENYING, ADMITTED, ABORTED = "begun", "done", "reopened", "denying", "admitted", "aborted"
WAITING = "waiting"
SETTLING_LATE, SETTLED_LATE = "settling late writes", "settled late writes"
"""Events of a wave. `detail` of BEGUN has the direction, of DENYING and ADMITTED the ACLs, of DONE what the step found, of
WAITING what the step waits for, what was seen of it, and since when, of SETTLING_LATE and SETTLED_LATE the direction that was
passed, how (`choice`), and which late writes (`writes`). SETTLED_LATE also has what of them was `copied`, and what was `lost`."""


REHEARSING, REHEARSED = "rehearsing", "rehearsed"
"""Events of rehearsals. Both have in `detail` what was created, so that one that was killed is cleaned up by the next one."""


class Phase(enum.StrEnum):
    """State of a wave: before its move or aborted, on its way, there, on its way back, or back."""

    AT_SOURCE = "at the source"
    MOVING = "moving"
    MOVED = "moved"
    RETURNING = "rolling back"
    RETURNED = "rolled back"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveState:
    """`done`: the steps of this direction that are done, with what they found, and `done_at` when; both begin empty.

    `move`: what the steps of the move found, kept for the rollback. `denied`: ACLs that were or are created at the cluster that
    is left, by direction, until they are deleted.
    """

    name: str
    phase: Phase = Phase.AT_SOURCE
    attempt: int = 0
    begun_at: datetime | None = None
    fingerprint: str = ""
    done: Mapping[Step, Mapping[str, Any]] = field(default_factory=dict)
    done_at: Mapping[Step, datetime] = field(default_factory=dict)
    move: Mapping[Step, Mapping[str, Any]] = field(default_factory=dict)
    denied: Mapping[Direction, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    aborted: Mapping[Direction, Sequence[tuple[datetime, datetime]]] = field(default_factory=dict)
    """Begin and end of the attempts that were aborted."""
    waiting: Mapping[str, Any] | None = None
    """What the open step waits for, and since when; None: it has not said that it waits."""
    hooks: HookState = NO_HOOKS
    """Those of the last attempt."""
    settling: Sequence[Mapping[str, Any]] = ()
    """Late writes that a command has begun to settle, by its events."""
    late_writes: Sequence[Mapping[str, Any]] = ()
    """Late writes that were settled."""

    @property
    def direction(self) -> Direction:
        return Direction.ROLLBACK if self.phase in (Phase.RETURNING, Phase.RETURNED) else Direction.MOVE

    @property
    def is_under_way(self) -> bool:
        return self.phase in (Phase.MOVING, Phase.RETURNING)

    @property
    def can_abort(self) -> bool:
        return self.is_under_way and is_before_point_of_no_return(self.done)

    @property
    def next_step(self) -> StepInfo | None:
        """Return the step that is performed now; None if nothing is under way."""
        if not self.is_under_way:
            return None
        return next((info for info in steps_of(self.direction) if info.step not in self.done), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorState:
    """The conductor that owns the migration. `has_ended`: it ended by itself; one that was killed has not."""

    epoch: int
    host: str
    pid: int
    run_id: str
    has_ended: bool

    def __str__(self) -> str:
        return f"conductor {self.epoch} on {self.host} (pid {self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationState:
    """`conductor` None: there was none yet. `rehearsals`: those that have not said that nothing is left of them."""

    waves: Mapping[str, WaveState]
    rehearsals: Sequence[Mapping[str, Any]] = ()
    conductor: ConductorState | None = None

    @property
    def under_way(self) -> WaveState | None:
        return next((wave for wave in self.waves.values() if wave.is_under_way), None)


def state_of(rows: Iterable[MigrationRow], names: Sequence[str]) -> MigrationState:
    """Return the state. `names`: the waves of the file in their order; waves that only the table has come behind them."""
    waves = {name: WaveState(name=name) for name in names}
    rehearsals: list[Mapping[str, Any]] = []
    rows = tuple(rows)
    for row in rows:
        if row.event == REHEARSING:
            rehearsals.append(row.detail)
        elif row.event == REHEARSED:
            rehearsals = [rehearsal for rehearsal in rehearsals if rehearsal != row.detail]
        elif row.wave:
            waves[row.wave] = _after(waves.get(row.wave, WaveState(name=row.wave)), row)
    return MigrationState(waves=waves, conductor=conductor_of(rows), rehearsals=tuple(rehearsals))


def conductor_of(rows: Iterable[MigrationRow]) -> ConductorState | None:
    """Return the conductor that took over last; None: there was none yet."""
    conductor: ConductorState | None = None
    for row in rows:
        if row.event == TAKEN_OVER:
            conductor = ConductorState(epoch=row.conductor_epoch, host=row.host, pid=row.pid, run_id=row.run_id, has_ended=False)
        elif row.event == ENDED and conductor is not None:
            conductor = replace(conductor, has_ended=True)
    return conductor


def _after(wave: WaveState, row: MigrationRow) -> WaveState:
    if row.event not in (SETTLING_LATE, SETTLED_LATE):
        wave = replace(wave, waiting=row.detail if row.event == WAITING else None)
    if row.event in (HOOK_BEGUN, HOOK_DONE, HOOK_UNDONE):
        return replace(wave, hooks=wave.hooks.after(row))
    match row.event:
        case "begun":
            direction = Direction(row.detail["direction"])
            return replace(
                wave,
                phase=Phase.MOVING if direction is Direction.MOVE else Phase.RETURNING,
                attempt=wave.attempt + 1,
                begun_at=row.at,
                fingerprint=row.fingerprint,
                done={},
                done_at={},
                hooks=NO_HOOKS,
            )
        case "done":
            return _after_step(wave, Step(row.step), row)
        case "reopened":
            lost = reopened(wave.done, Step(row.step))
            done = {step: found for step, found in wave.done.items() if step not in lost}
            return replace(wave, done=done, hooks=wave.hooks.reopened(row.step, list(Step)))
        case "denying":
            denied = [*wave.denied.get(wave.direction, ()), *row.detail["acls"]]
            without_twins = [acl for number, acl in enumerate(denied) if acl not in denied[:number]]
            return replace(wave, denied={**wave.denied, wave.direction: without_twins})
        case "admitted":
            direction = Direction(row.detail["direction"])
            return replace(wave, denied={side: acls for side, acls in wave.denied.items() if side is not direction})
        case "settling late writes":
            return replace(wave, settling=(*wave.settling, row.detail))
        case "settled late writes":
            # The choice may be another one than at the begin.
            ended = (row.detail["direction"], row.detail["writes"])
            settling = tuple(each for each in wave.settling if (each["direction"], each["writes"]) != ended)
            return replace(wave, settling=settling, late_writes=(*wave.late_writes, row.detail))
        case "aborted":
            phase = Phase.AT_SOURCE if wave.direction is Direction.MOVE else Phase.MOVED
            attempt = (wave.begun_at or row.at, row.at)
            aborted = {**wave.aborted, wave.direction: (*wave.aborted.get(wave.direction, ()), attempt)}
            return replace(wave, phase=phase, done={}, done_at={}, aborted=aborted)
    return wave


def _after_step(wave: WaveState, step: Step, row: MigrationRow) -> WaveState:
    done, done_at = {**wave.done, step: row.detail}, {**wave.done_at, step: row.at}
    phase = wave.phase
    if step is Step.REPORT:
        phase = Phase.MOVED if wave.direction is Direction.MOVE else Phase.RETURNED
    move = done if wave.direction is Direction.MOVE else wave.move
    return replace(wave, done=done, done_at=done_at, phase=phase, move=move)
