"""Performs the steps of a fail-over or of its way back, one after the other.

What a step found is written when it is done, so a conductor that is killed anywhere is continued by the next one, which performs
the open step again.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from shallow_mirror.config.failover_config import FailoverConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.migration.conductor_ports import Clock, Detail, Owner, Reports as MigrationReports
from shallow_mirror.migration.failover.state import (
    ABORT_REFUSED,
    ABORTED_OUT,
    ABORTING,
    FILLING,
    KEEPING,
    FailoverState,
    state_of,
)
from shallow_mirror.migration.failover.steps import Step, Way, steps_of
from shallow_mirror.migration.hooks.hook_call import Call, call_hook
from shallow_mirror.migration.hooks.hook_runner import HookRunner
from shallow_mirror.migration.hooks.hook_state import due_hooks
from shallow_mirror.migration.late_writes import LateWrite
from shallow_mirror.migration.observations import MirrorRun, named
from shallow_mirror.migration.sentences import not_running
from shallow_mirror.migration.state import BEGUN, DONE, REOPENED
from shallow_mirror.migration.waiting import Waiting
from shallow_mirror.plurals import counted

POLL_S = 0.2
SLOW_POLL_S = 1.0
LOOK_S = 10.0
"""How often it is looked whether topics that are filled were deleted."""


class Effects(Protocol):
    """What a conductor sees and does; `FailoverEffects` does it. Every method may be called again after a crash."""

    @property
    def source_alias(self) -> str: ...
    @property
    def target_alias(self) -> str: ...
    @property
    def mirror_id(self) -> str: ...
    @property
    def way_back(self) -> WayBackEffects: ...
    def topics(self) -> list[str]: ...
    def problems(self) -> list[str]: ...
    def fence(self) -> Detail: ...
    def open_topics(self) -> int: ...
    def move_groups(self) -> Detail: ...
    def release(self, state: FailoverState, /, *, despite_groups: bool) -> list[str]: ...
    def count_losses(self, state: FailoverState, /) -> Detail: ...


class WayBackEffects(Protocol):
    """What it sees and does on the way back; `WayBack` does it."""

    @property
    def source_alias(self) -> str: ...
    @property
    def target_alias(self) -> str: ...
    @property
    def back_file(self) -> str | None: ...
    @property
    def starts_back(self) -> bool: ...
    def back_problems(self, state: FailoverState, /) -> list[str]: ...
    def active_groups(self) -> list[str]: ...
    def open_at_source(self, state: FailoverState, /) -> list[str]: ...
    def topic_ids(self, state: FailoverState, /) -> Mapping[str, str]: ...
    def diverged(self, state: FailoverState, ids: Mapping[str, str], /) -> Sequence[LateWrite]: ...
    def keep(self, write: LateWrite, /) -> Detail: ...
    def compare_kept(self, writes: Sequence[LateWrite], /) -> list[str]: ...
    def delete_topics(self, ids: Mapping[str, str], /) -> list[str]: ...
    def back(self) -> Detail: ...
    def replacing_problems(self, state: FailoverState, topics: Sequence[str], /) -> list[str]: ...
    def run_of_replaced(self, former: Detail, /) -> MirrorRun | None: ...
    def take_back(self, former: Detail, topics: Sequence[str], /) -> None: ...
    def filling_problems(self, topics: Sequence[str], /) -> list[str]: ...
    def prepare_back(self, topics: Sequence[str], /) -> None: ...
    def back_run(self) -> MirrorRun | None: ...
    def start_back(self) -> str: ...
    def unfilled(self, topics: Sequence[str], /) -> list[str]: ...
    def groups_of(self, topics: Sequence[str], /) -> list[str]: ...
    def hand_back(self, topics: Sequence[str], groups: Sequence[str], /) -> Detail: ...


class Reports(MigrationReports, Protocol):
    """Receives the steps of a fail-over, and of the migration that ends its way back."""

    def step_begun(self, way: Way, step: Step) -> None: ...
    def step_done(self, way: Way, step: Step, detail: Detail) -> None: ...


class FailoverConductor:
    def __init__(
        self,
        config: FailoverConfig,
        owner: Owner,
        effects: Effects,
        reports: Reports,
        clock: Clock,
        way: Way,
        *,
        waits: bool = True,
        skipped_hooks: Collection[str] = (),
        call: Call = call_hook,
    ) -> None:
        """Perform nothing yet. Without `waits`, WaitsForOutsideError is raised where somebody outside has to act."""
        self._config = config
        self._owner, self._effects, self._reports, self._clock, self._way = owner, effects, reports, clock, way
        self._waiting = Waiting(way.value, owner, reports, clock, waits=waits)
        self._retried = self._waiting.retried
        self._skipped_hooks, self._call = skipped_hooks, call

    def run(self) -> FailoverState:
        """Perform every step that is not done. Raises ConfigError, WaitsForOutsideError, FencedError, RecoverNeededError.

        Raises HookFailedError before the mirror is fenced; behind that, and on the way back, a hook is called until it succeeds.
        """
        state = self.state()
        if self._way not in state.begun_at:
            self._append(BEGUN, detail={"mirror": self._effects.mirror_id} if self._way is Way.OUT else None)
        last = steps_of(self._way)[-1].step
        while (info := state.next_step(self._way)) is not None:
            if self._call_hooks(state, list(state.done), info.step):
                state = self.state()
            self._waiting.begin(info.step)
            self._reports.step_begun(self._way, info.step)
            began_s = self._clock.monotonic()
            found = self._perform(info.step, state)
            if isinstance(found, Step):
                self._append(REOPENED, step=found)
            else:
                if info.step is last:  # once it is recorded, no call continues
                    self._call_hooks(state, [*state.done, last], None)
                detail = {**found, "seconds": round(self._clock.monotonic() - began_s, 3)}
                self._append(DONE, step=info.step, detail=detail)
                self._reports.step_done(self._way, info.step, detail)
            state = self.state()
        return state

    def abort(self, *, despite_groups: bool = False) -> None:
        """Take the way out back, or finish that. Raises HookFailedError, FencedError.

        Raises ConfigError if the target was used since the caller looked: the fail-over stays as it is, without its hooks.
        """
        self._append(ABORTING)
        # Before the mirror may write to the target again: what a hook has sent there leaves it first.
        self._hooks("abort").undo(self._config.hooks, self.state().hooks)
        state = self.state()
        # Again, right before the mirror may start: until the hooks were undone, applications were sent to the target.
        problems = self._retried(lambda: self._effects.release(state, despite_groups=despite_groups))
        if problems:
            self._append(ABORT_REFUSED)
            raise ConfigError([f"the abort is withdrawn, its hooks are undone: {problem}" for problem in problems])
        for name in state.hooks.begun:
            if name not in self._skipped_hooks:
                self._reports.says(f"{self._way}: hook {name} was called, and has no undo: take back what it changed")
        self._append(ABORTED_OUT)

    def _call_hooks(self, state: FailoverState, done: Sequence[Step], following: Step | None) -> bool:
        own = {info.step.value for info in steps_of(self._way)}
        due = due_hooks([hook for hook in self._config.hooks if hook.place[1] in own], state.hooks, done, following, list(Step))
        if due:
            self._waiting.begin(done[-1] if following is None else following)
            runner = self._hooks("run" if self._way is Way.OUT else "back")
            runner.run(due, state.hooks, may_end=self._way is Way.OUT and Step.FENCE not in state.done)
        return bool(due)

    def _hooks(self, command: str) -> HookRunner:
        return HookRunner(
            waiting=self._waiting,
            clock=self._clock,
            says=lambda sentence: self._reports.says(f"{self._way}: {sentence}"),
            append=lambda event, *, step, detail: self._append(event, step=Step(step), detail=detail),
            document=self._hook_document,
            id_of=lambda hooks: f"{self._config.failover}/{self._way}/{hooks.reopenings}",
            command=f"shallow-mirror failover {command} {shlex.quote(self._config.path)}",
            skipped=self._skipped_hooks,
            call=self._call,
        )

    def _hook_document(self) -> Mapping[str, Any]:
        sides = (self._effects.source_alias, self._effects.target_alias)
        left, other = sides if self._way is Way.OUT else sides[::-1]
        topics = self._retried(self._effects.topics)
        return {"failover": self._config.failover, "direction": self._way.value, "from": left, "to": other, "topics": topics}

    def state(self) -> FailoverState:
        return state_of(self._retried(self._owner.rows))

    def _perform(self, step: Step, state: FailoverState) -> Detail | Step:
        """Return what the step found; or an earlier step that has to be done again."""
        effects = self._effects
        match step:
            case Step.CHECK:
                self._require_none(self._retried(effects.problems))
                return {}
            case Step.FENCE:
                return self._retried(effects.fence)
            case Step.ADMIT_WRITERS:
                return {"acls": self._retried(effects.open_topics)}
            case Step.MOVE_GROUPS:
                return self._retried(effects.move_groups)
            case Step.REPORT:
                return self._retried(lambda: effects.count_losses(state))
            case Step.CHECK_BACK:
                return self._check_back(state)
            case Step.KEEP:
                return self._keep(state)
            case Step.DELETE:
                return self._delete(state)
            case Step.FILL:
                return self._fill(state)
            case Step.HAND_BACK:
                return self._hand_back(state)

    @staticmethod
    def _require_none(problems: Sequence[str]) -> None:
        if problems:
            raise ConfigError(problems)

    def _check_back(self, state: FailoverState) -> Detail:
        effects = self._effects.way_back
        self._require_none(self._retried(lambda: effects.back_problems(state)))
        # Members that died with the cluster are in its groups until their session timeouts.
        while active := self._retried(effects.active_groups):
            request = f"stop the consumers of these topics at {effects.source_alias}"
            self._waiting.for_somebody(request, f"groups with members: {named(active)}", POLL_S)
        # A topic that is deleted before the step that does it, is filled again as well.
        return {"topics": dict(self._retried(lambda: effects.topic_ids(state)))}

    def _keep(self, state: FailoverState) -> Detail:
        effects = self._effects.way_back
        while is_open := self._retried(lambda: effects.open_at_source(state)):
            self._waiting.for_progress(f"transactions at {effects.source_alias} to end", named(is_open), SLOW_POLL_S)
        # Before the logs are read: a topic that is created again in between is not deleted by its new id.
        ids = self._retried(lambda: effects.topic_ids(state))
        self._note_diverged(state, ids)
        writes = [LateWrite.of(document) for document in self.state().keeping]
        kept = []
        for write in writes:
            self._reports.says(f"{self._way}: keeping {write} ...")
            copied: Detail = self._retried(partial(effects.keep, write))
            for gone in copied["gone"]:
                lost = LateWrite(topic_partition=write.topic_partition, **gone)
                self._reports.says(f"{self._way}: not kept, deleted at {effects.source_alias} before: {lost}")
            kept.append({**write.document(), **copied})
        differences = self._retried(lambda: effects.compare_kept(writes)) if writes else []
        if differences:
            raise ConfigError(
                [
                    f"{difference}: nothing was deleted at {effects.source_alias}; write another name in back.kept: all of it is "
                    "copied again there"
                    for difference in differences
                ]
            )
        return {"topics": dict(ids), "kept": kept}

    def _note_diverged(self, state: FailoverState, ids: Mapping[str, str]) -> bool:
        """Record the ranges that only the old source has and that no row names yet. Return whether there were any.

        `ids`: of the topics; others of the same names are left out.
        """
        new = self._retried(lambda: self._effects.way_back.diverged(state, ids))
        if new:
            self._append(KEEPING, detail={"writes": [write.document() for write in new]})
        return bool(new)

    def _delete(self, state: FailoverState) -> Detail | Step:
        effects, ids = self._effects.way_back, state.done[Step.KEEP]["topics"]
        # Behind the begin of an open transaction, records do not show that are there: those of others as well.
        if is_open := self._retried(lambda: effects.open_at_source(state)):
            self._reports.says(f"{self._way}: transactions were begun at {effects.source_alias} meanwhile: {named(is_open)}")
            return Step.KEEP
        if self._note_diverged(state, ids):
            self._reports.says(f"{self._way}: meanwhile more records are only at {effects.source_alias}: they are kept as well")
            return Step.KEEP
        if gone := sorted(ids.keys() - self._retried(lambda: effects.topic_ids(state)).keys()):
            self._reports.says(
                f"{self._way}: {effects.target_alias} does not have {named(gone)} any more: what is at "
                f"{effects.source_alias} stays"
            )
            return Step.KEEP
        # Right before each topic is deleted: the looks take time.
        if written := self._waiting.owned(lambda: effects.delete_topics(ids)):
            self._reports.says(
                f"{self._way}: written to at {effects.source_alias} meanwhile, and not deleted yet: {named(written)}"
            )
            return Step.KEEP
        return {}

    def _is_replaced(self, state: FailoverState, topics: Sequence[str]) -> bool:
        """Return whether another mirror back is named than the one that has begun to fill. What followed that is taken back."""
        effects, former = self._effects.way_back, state.filling
        if former is None or former["mirror"] == effects.back()["mirror"]:
            return False
        self._require_none(self._retried(lambda: effects.replacing_problems(state, topics)))
        while (run := self._retried(lambda: effects.run_of_replaced(former))) is not None and run.is_alive and not run.is_over:
            request = f"stop the mirror {former['mirror']}, which is replaced"
            self._waiting.for_somebody(request, f"{run.description} runs", POLL_S)
        self._retried(lambda: effects.take_back(former, topics))
        self._reports.says(
            f"{self._way}: mirror {effects.back()['mirror']} takes the place of {former['mirror']}: what that has filled is "
            f"deleted at {effects.source_alias}, and filled again"
        )
        return True

    def _hand_back(self, state: FailoverState) -> Detail | Step:
        effects, topics = self._effects.way_back, sorted(state.done[Step.KEEP]["topics"])
        if self._is_replaced(state, topics):
            return Step.KEEP
        if state.filling is None and not self._retried(lambda: effects.unfilled(topics)):
            self._append(FILLING, detail=effects.back())
        return effects.hand_back(topics, state.done[Step.FILL]["groups"])

    def _fill(self, state: FailoverState) -> Detail | Step:
        """Wait until the mirror back has copied what the target held. The rest, the migration waits for."""
        effects, topics, started = self._effects.way_back, sorted(state.done[Step.KEEP]["topics"]), None
        if self._is_replaced(state, topics):
            return Step.KEEP
        if state.filling is None:
            self._append(FILLING, detail=effects.back())
        self._retried(lambda: effects.prepare_back(topics))
        looked_at_s = self._clock.monotonic()
        while True:
            run = self._retried(effects.back_run)
            is_running = run is not None and not run.is_over
            unfilled = self._retried(lambda: effects.unfilled(topics)) if is_running else []
            if not unfilled or self._clock.monotonic() - looked_at_s >= LOOK_S:
                self._require_none(self._retried(lambda: effects.filling_problems(topics)))
                looked_at_s = self._clock.monotonic()
            if run is not None and is_running:
                if not unfilled:
                    return {"run": run.description, "groups": self._retried(lambda: effects.groups_of(topics))}
                self._waiting.for_progress("the mirror to copy", f"not copied: {named(unfilled)}", POLL_S)
                continue
            seen = not_running(str(effects.back_file), run)
            if effects.starts_back:
                if started is None:
                    started = self._retried(effects.start_back)
                    self._reports.says(f"{self._way}: started the mirror: {started}")
                self._waiting.for_progress("the mirror to take over its tables", f"{started}; {seen}", SLOW_POLL_S)
            else:
                self._waiting.for_somebody(f"run `shallow-mirror run {effects.back_file}` as a service", seen, SLOW_POLL_S)

    def _append(self, event: str, *, step: Step | None = None, detail: Mapping[str, Any] | None = None) -> None:
        self._owner.append(event=event, wave=self._way.value, step="" if step is None else step.value, detail=detail)


def moved_sentence(detail: Mapping[str, Any]) -> str:
    """Return what the groups' step found."""
    nearest = f", {detail['nearest']:,} of them at the nearest offset" if detail["nearest"] else ""
    return f"{counted(detail['offsets'], 'offset')} of {counted(detail['groups'], 'group')}{nearest}"
