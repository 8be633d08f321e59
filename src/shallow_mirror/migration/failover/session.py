"""Driver: a fail-over and its way back, begun or continued; its plan and its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.checkpoints.logs.runs import MigrationLog
from shallow_mirror.checkpoints.rows import MigrationRow
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config.failover_config import FailoverFiles
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.report import GroupsReport
from shallow_mirror.migration.failover.conductor import FailoverConductor, Reports
from shallow_mirror.migration.failover.effects import FailoverEffects
from shallow_mirror.migration.failover.state import FailoverState, state_of
from shallow_mirror.migration.failover.steps import Step, StepInfo, Way, steps_of
from shallow_mirror.migration.late_writes import LateWrite
from shallow_mirror.migration.newest_row import NewestRow
from shallow_mirror.migration.session import Options, owned_log, require_sole


def read_failover(files: FailoverFiles) -> FailoverState:
    """Return the state. Raises ConfigError, OffsetMapConflictError."""
    return state_of(_rows(files))


def read_newest_failover(files: FailoverFiles) -> FailoverState:
    """Return the state. Raises as `read_failover`; ConfigError where the table is an older copy, RetriableError."""
    return state_of(NewestRow(files.mirror, files.config.failover).require_in(lambda: _rows(files)))


def _rows(files: FailoverFiles) -> Sequence[MigrationRow]:
    return MigrationLog.open(TableStorage(files.config.table_location), files.config.failover).rows()


_ANOTHER = "the next fail-over needs another name (failover) and other tables in its file"


def _other_mirror(files: FailoverFiles, state: FailoverState) -> str | None:
    """Return that the file names another mirror than the one that was fenced, or may be: what is done says nothing of it."""
    fenced = state.mirror
    if fenced in (None, files.mirror.mirror):
        return None
    return (
        f"{files.config.path}: mirror: names mirror {files.mirror.mirror} now, but {files.config.failover} has failed over "
        f"mirror {fenced}{'' if Step.FENCE in state.done else ', or has begun to'}: undo that change; {_ANOTHER}"
    )


def _returned(files: FailoverFiles, state: FailoverState) -> str | None:
    """Return that the topics are back: this fail-over is over."""
    if not state.is_back:
        return None
    at = state.done_at[Step.HAND_BACK].isoformat(timespec="seconds")
    return f"{files.config.failover} has failed back at {at}, and fails over no more: {_ANOTHER}"


def _of_this_mirror(files: FailoverFiles) -> FailoverState:
    state = read_newest_failover(files)
    if (problem := _other_mirror(files, state)) is not None:
        raise ConfigError(problem)
    return state


def _require_open(files: FailoverFiles, state: FailoverState, way: Way) -> None:
    """Raise ConfigError if the state forbids a way."""
    path = files.config.path
    if state.is_aborting:
        raise ConfigError(f"an abort has begun: finish it with `shallow-mirror failover abort {path}`")
    if way is Way.OUT and (problem := _returned(files, state)) is not None:
        raise ConfigError(problem)
    if way is Way.BACK and not state.is_back and state.next_step(Way.OUT) is not None:
        raise ConfigError(
            f"nothing was failed over yet: `shallow-mirror failover run {path}`"
            if not state.begun_at
            else f"the fail-over is not done: finish it with `shallow-mirror failover run {path}`"
        )


def _require_abortable(files: FailoverFiles, state: FailoverState) -> None:
    """Raise ConfigError if there is no fail-over that could be taken back."""
    path = files.config.path
    if Way.BACK in state.begun_at:
        raise ConfigError(
            "the topics are back already: there is nothing to abort"
            if state.is_back
            else f"the way back has begun, and cannot be aborted: finish it with `shallow-mirror failover back {path}`"
        )
    if not state.begun_at:
        raise ConfigError("no fail-over was begun: there is nothing to abort")


def fail_over(files: FailoverFiles, reports: Reports, options: Options, *, despite_source: bool = False) -> FailoverState:
    """Fail over, or continue it. Safe to call again after any error; asks the source for nothing.

    Raises ConfigError with everything that is in the way before anything is done, FencedError, RecoverNeededError.
    """
    state = _of_this_mirror(files)
    _require_open(files, state, Way.OUT)
    if state.next_step(Way.OUT) is None:
        return state
    effects = FailoverEffects(files, reports, options, despite_source=despite_source)
    with closing(effects):
        return _perform(files, effects, reports, options, state, Way.OUT)


def fail_back(files: FailoverFiles, reports: Reports, options: Options) -> FailoverState:
    """Bring the topics back to the source, or continue that. Safe to call again after any error. Raises as `run_migration`."""
    state = _of_this_mirror(files)
    _require_open(files, state, Way.BACK)
    if state.next_step(Way.BACK) is None:
        return state
    effects = FailoverEffects(files, reports, options)
    with closing(effects):
        return _perform(files, effects, reports, options, state, Way.BACK)


def abort_failover(files: FailoverFiles, reports: Reports, options: Options, *, despite_groups: bool = False) -> FailoverState:
    """Take a fail-over back, or finish that: the mirror may start again, and continues where it ended.

    Raises ConfigError with everything that is in the way, before anything is done: records or offsets of others at the target,
    a way back that has begun. The target is looked at again right before the mirror may start.
    Raises RetriableError, FencedError; HookFailedError if the `undo` of a hook fails.
    """
    options.require_hooks(files.config.hooks)
    state = _of_this_mirror(files)
    _require_abortable(files, state)
    require_sole(state.conductor, options)
    with closing(FailoverEffects(files, reports, options)) as effects:
        problems = [] if state.is_aborting else effects.abort_problems(state, despite_groups=despite_groups)
        if problems:
            raise ConfigError(problems)
        with _conducted(files, effects, reports, options, state, Way.OUT) as conductor:
            _require_abortable(files, conductor.state())
            conductor.abort(despite_groups=despite_groups)
    return read_failover(files)


def _perform(
    files: FailoverFiles, effects: FailoverEffects, reports: Reports, options: Options, state: FailoverState, way: Way
) -> FailoverState:
    config = files.config
    options.require_hooks([*config.hooks, *config.back.hooks])
    require_sole(state.conductor, options)
    if way not in state.begun_at:
        problems = effects.problems() if way is Way.OUT else effects.way_back.back_problems(state)
        if problems:
            raise ConfigError(problems)
    with _conducted(files, effects, reports, options, state, way) as conductor:
        _require_open(files, conductor.state(), way)
        conductor.run()
    return read_failover(files)


@contextmanager
def _conducted(
    files: FailoverFiles, effects: FailoverEffects, reports: Reports, options: Options, state: FailoverState, way: Way
) -> Iterator[FailoverConductor]:
    """Take over the table of the fail-over. What `state` permitted may be forbidden by now: the checks since take minutes.

    Raises ConfigError if another conductor has begun since, and may be alive.
    """
    config = files.config
    if (now := read_failover(files).conductor) != state.conductor:
        require_sole(now, options)
    newest = NewestRow(files.mirror, config.failover)
    with owned_log(config.table_location, newest, files.fingerprint, options.clock) as owner:
        yield FailoverConductor(
            config, owner, effects, reports, options.clock, way, waits=options.waits, skipped_hooks=options.skipped_hooks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """What `run`, or behind it `back`, would do."""

    way: Way
    source: str
    target: str
    steps: Sequence[StepInfo]
    problems: Sequence[str]
    source_answers: bool
    groups: GroupsReport | None = None
    """Of a fail-over: offsets that would be committed; None: none is recorded."""
    diverged: Sequence[LateWrite] = ()
    """Of the way back: records that only the old source has."""
    open: Sequence[str] = ()
    """Of the way back: partitions of the old source with an open transaction, behind which records are not known yet."""

    def document(self) -> dict[str, Any]:
        return {
            "way": self.way.value,
            "source": self.source,
            "target": self.target,
            "source_answers": self.source_answers,
            "problems": list(self.problems),
            "steps": [{"step": info.step.value, "does": info.does, "leaves": info.leaves} for info in self.steps],
            "groups": None if self.groups is None else self.groups.document(),
            "diverged": [write.document() for write in self.diverged],
            "open": list(self.open),
        }


class _Silent:
    """`Reports` of a plan, which performs no step."""

    def waits(self, outside: object) -> None: ...
    def says(self, sentence: str) -> None: ...
    def begun(self, wave: str, step: object) -> None: ...
    def done(self, wave: str, step: object, detail: object) -> None: ...
    def step_begun(self, way: Way, step: Step) -> None: ...
    def step_done(self, way: Way, step: Step, detail: object) -> None: ...


def plan_failover(files: FailoverFiles) -> FailoverPlan:
    """Return the plan of the fail-over; of the way back once that is done. Raises RetriableError, ConfigError."""
    state = read_newest_failover(files)
    way = Way.OUT if state.next_step(Way.OUT) is not None else Way.BACK
    words = {
        "source": files.mirror.source.alias,
        "target": files.mirror.target.alias,
        "mirror": files.mirror.mirror,
        "back": files.config.back.mirror or "(back.mirror is not set)",
    }
    steps = [
        replace(
            info,
            does=info.does.format(**words),
            leaves=info.leaves.format(**words),
            outside=None if info.outside is None else info.outside.format(**words),
        )
        for info in steps_of(way)
        if info.step not in state.done
    ]
    over = [problem for problem in (_other_mirror(files, state), _returned(files, state)) if problem is not None]
    with closing(FailoverEffects(files, _Silent(), Options(), despite_source=True)) as effects:
        answers = effects.source_answers()
        plan = FailoverPlan(
            way=way,
            source=words["source"],
            target=words["target"],
            steps=steps,
            source_answers=answers,
            problems=over,
        )
        if over:
            return plan
        if way is Way.OUT:
            problems = effects.problems()
            groups = None if problems else effects.report_groups(datetime.now(UTC), is_applied=False)
            return replace(plan, problems=problems, groups=groups)
        if not answers or Step.DELETE in state.done:
            return plan
        problems = effects.way_back.back_problems(state) if Way.BACK not in state.begun_at else []
        # Ranges whose copies were begun count until they are kept and compared.
        unkept = state if Step.KEEP in state.done else replace(state, keeping=())
        # In this order: what a transaction that ends in between has hidden is not missing from both.
        is_open = effects.way_back.open_at_source(state)
        diverged = effects.way_back.diverged(unkept, effects.way_back.topic_ids(state))
        return replace(plan, problems=problems, diverged=diverged, open=is_open)
