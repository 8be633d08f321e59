"""Pure: which hooks of an attempt were called, and which are called next.

The row of a hook that has begun is written before it is called, so that `abort` undoes also one of which it is not known how it
ended, and the row of one that is done behind it. So a hook is called at least once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from shallow_mirror.checkpoints.rows import MigrationRow

HOOK_BEGUN, HOOK_DONE, HOOK_UNDONE = "hook begun", "hook done", "hook undone"
"""Events. `detail` has the name of the hook, and of HOOK_DONE whether it was skipped."""


class Placed(Protocol):
    """A hook: its name, and whether it is called "before" or "after" which step."""

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> tuple[str, str]: ...


H = TypeVar("H", bound=Placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookState:
    begun: tuple[str, ...] = ()
    """Names of hooks that may have had an effect that was not undone, in their order."""
    done: Mapping[str, str] = field(default_factory=dict)
    """By name the step of each hook that is not called again."""
    reopenings: int = 0
    """So many times an earlier step, or an aborted fail-over, had to be done again. Part of the ids: new calls have new ones."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the hooks that were called or skipped."""
        return tuple(dict.fromkeys((*self.begun, *self.done)))

    def after(self, row: MigrationRow) -> HookState:
        """Return the state behind a row of a hook."""
        name = row.detail["hook"]
        match row.event:
            case "hook begun":
                return replace(self, begun=(*(other for other in self.begun if other != name), name))
            case "hook done":
                return replace(self, done={**self.done, name: row.step})
            case "hook undone":
                return replace(
                    self,
                    begun=tuple(other for other in self.begun if other != name),
                    done={other: step for other, step in self.done.items() if other != name},
                )
        return self

    def reopened(self, first: str, order: Sequence[str]) -> HookState:
        """Return the state once the step `first` has to be done again: hooks at it and behind it are called again."""
        kept = {name: step for name, step in self.done.items() if order.index(step) < order.index(first)}
        return replace(self, done=kept, reopenings=self.reopenings + 1)

    def aborted(self) -> HookState:
        """Return the state of the next attempt: nothing was called yet, and its ids are new."""
        return HookState(reopenings=self.reopenings + 1)


NO_HOOKS = HookState()


def due_hooks(
    hooks: Sequence[H], state: HookState, done: Collection[str], following: str | None, order: Sequence[str]
) -> list[H]:
    """Return the hooks that are called now: those after the steps that are `done`, then those before the step `following`."""
    behind = [hook for hook in hooks if hook.place[0] == "after" and hook.place[1] in done]
    behind.sort(key=lambda hook: order.index(hook.place[1]))
    ahead = [hook for hook in hooks if hook.place == ("before", following)]
    return [hook for hook in (*behind, *ahead) if hook.name not in state.done]
