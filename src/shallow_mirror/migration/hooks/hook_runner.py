"""Calls the hooks of a conductor that are due, and undoes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shallow_mirror.config.hook_settings import FailoverHook, Hook, MigrationHook
from shallow_mirror.errors import HookFailedError
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.hooks.hook_call import Call, CallFailedError, call_hook
from shallow_mirror.migration.hooks.hook_state import HOOK_BEGUN, HOOK_DONE, HOOK_UNDONE, HookState
from shallow_mirror.migration.waiting import Waiting

RETRY_S = 10.0
"""Pause before a hook is called again that failed where nothing can be taken back any more."""


class Append(Protocol):
    """Add a row of the wave or way."""

    def __call__(self, event: str, *, step: str, detail: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRunner:
    """`skipped`: names of hooks that count as done. `document`: what every call says of the migration or fail-over."""

    waiting: Waiting
    clock: Clock
    says: Callable[[str], None]
    append: Append
    document: Callable[[], Mapping[str, Any]]
    id_of: Callable[[HookState], str]
    command: str
    """The command that continues."""
    skipped: Collection[str] = ()
    call: Call = call_hook

    def run(self, hooks: Sequence[Hook], state: HookState, *, may_end: bool) -> None:
        """Call `hooks`, one after the other. Raises HookFailedError if one fails and `may_end`; otherwise it is called again."""
        for hook in hooks:
            when, step = hook.place
            if hook.name in self.skipped:
                self.append(HOOK_DONE, step=step, detail={"hook": hook.name, "skipped": True})
                self.says(f"hook {hook.name}: skipped")
                continue
            self.append(HOOK_BEGUN, step=step, detail={"hook": hook.name})
            self.says(f"hook {hook.name}, {when} {step} ...")
            began_s = self.clock.monotonic()
            self._call(hook, self._document(hook, state, "do"), may_end=may_end)
            seconds = round(self.clock.monotonic() - began_s, 3)
            self.append(HOOK_DONE, step=step, detail={"hook": hook.name, "skipped": False, "seconds": seconds})
            self.says(f"hook {hook.name}: done in {seconds:.1f} s")

    def undo(self, hooks: Sequence[MigrationHook | FailoverHook], state: HookState) -> None:
        """Undo every hook that has begun, the last one first. Raises HookFailedError."""
        by_name = {hook.name: hook for hook in hooks}
        for name in reversed(state.begun):
            hook = by_name.get(name)
            if name in self.skipped or (hook is not None and hook.undo is None):
                continue
            if hook is None:
                raise HookFailedError(name, "undo", "it is not in the file any more: undo that change", self._ways(name))
            assert hook.undo is not None
            self.says(f"hook {name}: undo ...")
            try:
                self.call(hook.undo, self._document(hook, state, "undo"))
            except CallFailedError as error:
                raise HookFailedError(name, "undo", str(error), self._ways(name)) from error
            self.append(HOOK_UNDONE, step=hook.place[1], detail={"hook": name})

    def _call(self, hook: Hook, document: Mapping[str, Any], *, may_end: bool) -> None:
        place = " ".join(hook.place)
        while True:
            try:
                return self.call(hook, document)
            except CallFailedError as error:
                if may_end:
                    raise HookFailedError(hook.name, place, str(error), self._ways(hook.name)) from error
                self.waiting.for_somebody(f"make hook {hook.name} succeed: {self._ways(hook.name)}", str(error), RETRY_S)

    def _ways(self, name: str) -> str:
        return f"`{self.command}` calls it again; with `--skip-hook {name}` it counts as done by hand"

    def _document(self, hook: Hook, state: HookState, action: str) -> dict[str, Any]:
        when, step = hook.place
        return {
            "id": f"{self.id_of(state)}/{hook.name}/{action}",
            "hook": hook.name,
            "action": action,
            "when": when,
            "step": step,
            **self.document(),
        }
