"""For the cli: plans, progress and states of migrations as text or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.plan import MigrationPlan, PlannedWave
from shallow_mirror.migration.state import MigrationState
from shallow_mirror.migration.steps import Step
from shallow_mirror.plurals import counted


class Printed:
    """`Reports` as lines on standard error."""

    def begun(self, wave: str, step: Step) -> None:
        self.says(f"{wave}: {step} ...")

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        self.says(f"{wave}: {step}: done in {detail['seconds']:.1f} s{_found(step, detail)}")

    def waits(self, outside: Outside) -> None:
        self.says(f"{outside.wave}: {outside.step}: WAITS: {outside.request} ({outside.seen}{_since(outside.waited_s)})")

    def says(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)


def _since(waited_s: float) -> str:
    return f"; for {waited_s:.0f} s" if waited_s >= 1 else ""


def _found(step: Step, detail: Mapping[str, Any]) -> str:
    match step:
        case Step.VERIFY | Step.VERIFY_REST:
            return f": no difference in {counted(detail['records'], 'record')}"
        case Step.COMMIT_GROUPS:
            return f": {counted(detail['offsets'], 'offset')} of {counted(detail['groups'], 'group')}"
        case Step.POINT_OF_NO_RETURN:
            return f": the writers were stopped for {detail['writers_stopped_s']:.1f} s"
        case Step.PREPARE_REVERSE | Step.START_REVERSE if "skipped" in detail:
            return f": {detail['skipped']}"
    return ""


def plan_text(plan: MigrationPlan) -> str:
    lines = [f"migration {plan.migration}: from {plan.origin} to {plan.other}"]
    for wave in plan.waves:
        lines += ["", *_wave_lines(wave)]
    return "\n".join(lines)


def _wave_lines(wave: PlannedWave) -> list[str]:
    lines = [
        f"wave {wave.name} ({wave.phase}): topics {', '.join(wave.topics) or '(none)'}; "
        f"groups {', '.join(wave.groups) or '(none)'}; reverse mirror {wave.reverse or '(none: no rollback)'}"
    ]
    lines += [f"  in the way: {problem}" for problem in wave.problems]
    lines += [f"  note: {note}" for note in wave.notes]
    for number, planned in enumerate(wave.steps, 1):
        seconds = planned.time.seconds if planned.time is not None else None
        took = "" if planned.time is None else f" [{'?' if seconds is None else f'{seconds:.1f} s'}: {planned.time.basis}]"
        lines.append(f"  {number:2d}. {planned.step}: {planned.does}; leaves: {planned.leaves}{took}")
        if planned.outside is not None:
            lines.append(f"      outside: {planned.outside}")
        if planned.step is Step.POINT_OF_NO_RETURN:
            lines.append("      -- up to here `abort` goes back; behind it only `rollback` does --")
    if wave.downtime_s is not None:
        lines.append(f"  the writers are stopped for about {wave.downtime_s:.0f} s, and the time that people take")
    return lines


def state_text(state: MigrationState, migration: str) -> str:
    conductor = (
        "no conductor yet"
        if state.conductor is None
        else str(state.conductor) + (", ended" if state.conductor.has_ended else ", running or killed")
    )
    lines = [f"migration {migration}: {conductor}"]
    for wave in state.waves.values():
        lines.append(f"wave {wave.name}: {wave.phase}" + (f", attempt {wave.attempt}" if wave.attempt else ""))
        for step, detail in wave.done.items():
            lines.append(f"  {step}: done at {wave.done_at[step].isoformat(timespec='seconds')}{_found(step, detail)}")
        if wave.next_step is not None:
            back = "abort goes back" if wave.can_abort else "behind the point of no return"
            lines.append(f"  {wave.next_step.step}: next ({back})")
        if (waiting := wave.waiting) is not None:
            since = datetime.fromtimestamp(waiting["since_ms"] / 1000, UTC).isoformat(timespec="seconds")
            lines.append(f"    waits since {since}: {waiting['for']} ({waiting['seen']})")
    lines += [
        f"rehearsal {rehearsal['prefix']}: running or killed; `migrate rehearse` or `migrate abort` deletes what is left of it"
        for rehearsal in state.rehearsals
    ]
    return "\n".join(lines)


def state_document(state: MigrationState, migration: str) -> dict[str, Any]:
    conductor = state.conductor
    return {
        "migration": migration,
        "conductor": None
        if conductor is None
        else {"epoch": conductor.epoch, "host": conductor.host, "pid": conductor.pid, "has_ended": conductor.has_ended},
        "waves": [
            {
                "wave": wave.name,
                "phase": wave.phase.value,
                "attempt": wave.attempt,
                "can_abort": wave.can_abort,
                "next_step": None if wave.next_step is None else wave.next_step.step.value,
                "waiting": None if wave.waiting is None else dict(wave.waiting),
                "done": [
                    {"step": step.value, "at": wave.done_at[step].isoformat(), **detail} for step, detail in wave.done.items()
                ],
            }
            for wave in state.waves.values()
        ],
        "rehearsals": [rehearsal["prefix"] for rehearsal in state.rehearsals],
    }


def show_state(state: MigrationState, migration: str, *, as_json: bool) -> None:
    print(json.dumps(state_document(state, migration)) if as_json else state_text(state, migration))
