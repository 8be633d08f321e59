"""For the cli: plans, progress and states of migrations as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.config.hook_settings import Hook
from shallow_mirror.config.migration_config import MigrationFiles
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.late_settling import Choice, choice_of
from shallow_mirror.migration.late_writes import (
    Copied,
    LateWrite,
    Passed,
    copied_late_writes,
    gaps_of,
    lost_late_writes,
)
from shallow_mirror.migration.plan import MigrationPlan, PlannedWave
from shallow_mirror.migration.sentences import late_writes_command, lost_sentence
from shallow_mirror.migration.session import LateWrites, read_late_writes
from shallow_mirror.migration.state import MigrationState, WaveState
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.plurals import counted
from shallow_mirror.progress import Spoken
from shallow_mirror.types import OffsetRange

NO_LATE_WRITES: Mapping[str, LateWrites] = {}
NO_LATE_LINES: Mapping[str, Sequence[str]] = {}
_DENIED_AT = {Direction.MOVE: "source", Direction.ROLLBACK: "target"}
_SETTLED = {Choice.CARRY: "carried to the other cluster", Choice.QUARANTINE: "copied to topics of their own"}


class Printed(Spoken):
    """`Reports` as lines on standard error."""

    def begun(self, wave: str, step: Step) -> None:
        self.says(f"{wave}: {step} ...")

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        self.says(f"{wave}: {step}: done in {detail['seconds']:.1f} s{_found(step, detail)}")

    def waits(self, outside: Outside) -> None:
        self.says(f"{outside.wave}: {outside.step}: WAITS: {outside.request} ({outside.seen}{_since(outside.waited_s)})")


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
        case Step.ADMIT_WRITERS if detail["acls"]:
            return f": {counted(detail['acls'], 'Deny ACL')} deleted"
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
        lines.append(f"  {number:2d}. {planned.step}: {planned.does}; result: {planned.leaves}{took}")
        if planned.outside is not None:
            lines.append(f"      outside: {planned.outside}")
        lines += [f"      hook {hook_sentence(hook)}" for hook in planned.hooks]
        if planned.step is Step.POINT_OF_NO_RETURN:
            lines.append("      -- up to here `abort` goes back; behind it only `rollback` does --")
    if wave.downtime_s is not None:
        lines.append(f"  the writers are stopped for about {wave.downtime_s:.0f} s, and the time that people take")
    return lines


def hook_sentence(hook: Hook) -> str:
    """Return what a hook calls, and when."""
    undo = getattr(hook, "undo", None)
    back = "" if undo is None else f"; `abort` calls {undo}"
    return f"{hook.name}, {hook.place[0]} it: {hook} (at most {hook.timeout_s:g} s{back})"


def state_text(state: MigrationState, migration: str, late: Mapping[str, Sequence[str]] = NO_LATE_LINES) -> str:
    """`late`: what `late_lines` returns."""
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
        lines += [f"  hook {name}: {'done' if name in wave.hooks.done else 'called, not done'}" for name in wave.hooks.names]
        if wave.next_step is not None:
            back = "abort goes back" if wave.can_abort else "behind the point of no return"
            lines.append(f"  {wave.next_step.step}: next ({back})")
        if (waiting := wave.waiting) is not None:
            since = datetime.fromtimestamp(waiting["since_ms"] / 1000, UTC).isoformat(timespec="seconds")
            lines.append(f"    waits since {since}: {waiting['for']} ({waiting['seen']})")
        lines += [f"  {line}" for line in _denied_lines(wave)]
        lines += [f"  late writes: {line}" for line in late.get(wave.name, ())]
    lines += [
        f"rehearsal {rehearsal['prefix']}: running or killed; `migrate rehearse` or `migrate abort` deletes what is left of it"
        for rehearsal in state.rehearsals
    ]
    return "\n".join(lines)


def _denied_lines(wave: WaveState) -> Iterator[str]:
    """Yield a line for each cluster where Deny ACLs of `writers.stop: deny` are in force."""
    for direction, acls in wave.denied.items():
        if not acls:
            continue
        if direction is wave.direction and wave.can_abort:
            end = "`migrate abort` deletes them"
        elif direction is Direction.MOVE and "skipped" not in wave.move.get(Step.PREPARE_REVERSE, {}):
            end = "a rollback deletes them"
        else:
            end = "no command deletes them, `kafka-acls.sh --remove` does"
        topics, principals = (", ".join(sorted({acl[field] for acl in acls})) for field in ("topic", "principal"))
        yield f"Deny ACLs created at the {_DENIED_AT[direction]}: WRITE of {topics} by {principals}: {end}"


def late_lines(files: MigrationFiles, state: MigrationState, late: Mapping[str, LateWrites]) -> dict[str, list[str]]:
    """Return, by wave, a line for each late write that was settled or lost, and for each that is not settled."""
    found: dict[str, list[str]] = {}
    for name, of_wave in late.items():
        lines = []
        for done in state.waves[name].late_writes:
            lines += [f"{write}: {_SETTLED[choice_of(done, write)]}" for write in copied_late_writes(done)]
            lines += [lost_sentence(write, _left_alias(files, done)) for write in lost_late_writes(done)]
        command = late_writes_command(files.config, name)
        begun = {LateWrite.of(write): done["choice"] for done in state.waves[name].settling for write in done["writes"]}
        lines += [
            f"{write}: a command has begun to copy that, and has not ended: `{command} --{choice}` continues it"
            for write, choice in begun.items()
        ]
        passed = Passed.of(state.waves[name])
        lines += [
            f"{write}: no mirror copies that: "
            + (
                f"`{command} --quarantine`"
                if passed is not None and passed.appeared(write)
                else f"`{command} --carry`, or `--quarantine`"
            )
            for found_write in of_wave.writes
            for write in _without(found_write, begun)
        ]
        found[name] = [*lines, *_not_known(of_wave)]
    return found


def _without(write: LateWrite, begun: Collection[LateWrite]) -> list[LateWrite]:
    """Return what of a late write no command has begun to copy: a log that has grown since is one range with that."""
    own = [each for each in begun if each.topic_partition == write.topic_partition and each.end > write.start]
    gaps = gaps_of(OffsetRange(write.start, write.end), [Copied(each.start, each.end, None) for each in own])
    if not own or not gaps:
        return [write] if gaps else []
    counts = [write.record_count, *(each.record_count for each in own)]
    known = [count for count in counts if count is not None]
    left = known[0] - sum(known[1:]) if len(gaps) == 1 and len(known) == len(counts) else None
    return [replace(write, start=gap.start, end=gap.end, record_count=left) for gap in gaps]


def left_lines(late: LateWrites) -> list[str]:
    """Return a line for each late write that came while a command settled those before, and for each that may come."""
    return [*(f"{write}: came meanwhile, and is not copied: run the command again" for write in late.writes), *_not_known(late)]


def _not_known(late: LateWrites) -> list[str]:
    is_open = [
        f"{transaction}: no mirror copies what it commits; look again once it has ended" for transaction in late.open_transactions
    ]
    return is_open if late.problem is None else [*is_open, f"unknown: {late.problem}"]


def _left_alias(files: MigrationFiles, settled: Mapping[str, Any]) -> str:
    """Return the alias of the cluster that was left, of an event of settled late writes."""
    return files.mirror.source.alias if settled["direction"] == Direction.MOVE else files.mirror.target.alias


def _late_document(wave: WaveState, late: LateWrites) -> dict[str, Any]:
    return {
        "late_writes": None if late.problem is not None else [write.document() for write in late.writes],
        "late_writes_problem": late.problem,
        "open_transactions": [transaction.document() for transaction in late.open_transactions],
        "settled_late_writes": [
            {**write.document(), "choice": choice_of(done, write).value}
            for done in wave.late_writes
            for write in copied_late_writes(done)
        ],
        "lost_late_writes": [write.document() for done in wave.late_writes for write in lost_late_writes(done)],
    }


def state_document(state: MigrationState, migration: str, late: Mapping[str, LateWrites] = NO_LATE_WRITES) -> dict[str, Any]:
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
                "hooks": [{"hook": name, "is_done": name in wave.hooks.done} for name in wave.hooks.names],
                "denied": {_DENIED_AT[direction]: list(acls) for direction, acls in wave.denied.items()},
                **_late_document(wave, late.get(wave.name, LateWrites())),
                "done": [
                    {"step": step.value, "at": wave.done_at[step].isoformat(), **detail} for step, detail in wave.done.items()
                ],
            }
            for wave in state.waves.values()
        ],
        "rehearsals": [rehearsal["prefix"] for rehearsal in state.rehearsals],
    }


def show_state(state: MigrationState, files: MigrationFiles, *, as_json: bool) -> bool:
    """Print the state of the migration. Return whether the clusters hold late writes that are not settled, or may soon."""
    late = read_late_writes(files, state)
    name = files.config.migration
    if as_json:
        print(json.dumps(state_document(state, name, late)))
    else:
        print(state_text(state, name, late_lines(files, state, late)))
    return any(of_wave.writes or of_wave.open_transactions for of_wave in late.values())
