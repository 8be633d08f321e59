"""The hooks of one wave: called between its steps, and undone by `abort`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shallow_mirror.config.migration_config import MigrationConfig, WaveSettings
from shallow_mirror.migration.conductor_ports import Clock, Effects, Reports
from shallow_mirror.migration.hooks.hook_call import Call
from shallow_mirror.migration.hooks.hook_runner import Append, HookRunner
from shallow_mirror.migration.hooks.hook_state import due_hooks
from shallow_mirror.migration.state import WaveState
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.migration.waiting import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveHooks:
    """`skipped`: names of hooks that count as done. `command`: the one that continues, where it is none of `migrate`."""

    config: MigrationConfig
    wave: WaveSettings
    effects: Effects
    reports: Reports
    waiting: Waiting
    clock: Clock
    append: Append
    skipped: Collection[str]
    command: str | None
    call: Call

    def call_due(self, state: WaveState) -> bool:
        """Call the hooks between the last step that is done and the next one. Return whether there were any.

        Before the point of no return HookFailedError ends the attempt; behind it a hook is called until it succeeds.
        """
        following = state.next_step
        return following is not None and self._call(state, list(state.done), following.step)

    def call_last(self, state: WaveState) -> None:
        """Call the hooks behind the last step, before it is recorded as done."""
        self._call(state, [*state.done, Step.REPORT], None)

    def undo(self, state: WaveState) -> None:
        """Undo the hooks of the attempt, the last one first. Raises HookFailedError."""
        self._runner(state, "abort").undo(self.config.hooks, state.hooks)

    def _call(self, state: WaveState, done: Sequence[Step], following: Step | None) -> bool:
        hooks = [hook for hook in self.config.hooks if hook.direction in ("both", state.direction.value)]
        due = due_hooks(hooks, state.hooks, done, following, list(Step))
        if due:
            self.waiting.begin(Step.REPORT if following is None else following)
            command = "rollback" if state.direction is Direction.ROLLBACK else "run"
            self._runner(state, command).run(due, state.hooks, may_end=state.can_abort)
        return bool(due)

    def _runner(self, state: WaveState, command: str) -> HookRunner:
        return HookRunner(
            waiting=self.waiting,
            clock=self.clock,
            says=lambda sentence: self.reports.says(f"{self.wave.name}: {sentence}"),
            append=self.append,
            document=lambda: {
                "migration": self.config.migration,
                "wave": self.wave.name,
                "direction": state.direction.value,
                "from": self.effects.origin_alias,
                "to": self.effects.other_alias,
                "topics": list(self.waiting.retried(self.effects.topics)),
                "groups": list(self.wave.groups),
            },
            id_of=lambda hooks: f"{self.config.migration}/{self.wave.name}/{state.direction}/{state.attempt}.{hooks.reopenings}",
            command=self.command or f"shallow-mirror migrate {command} {shlex.quote(self.config.path)}",
            skipped=self.skipped,
            call=self.call,
        )
