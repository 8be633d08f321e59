"""Hooks of a migration or fail-over: commands and HTTP calls at named steps."""

from __future__ import annotations

import shlex
import urllib.parse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from shallow_mirror.broker.auth import secrets
from shallow_mirror.config import failover_steps, migration_steps
from shallow_mirror.config.values import Interval, Name, Section, checked, parse_interval, require_http_url

_SECRET_WORDS = ("authorization", "cookie", "key", "password", "secret", "token")


def _require_headers(headers: dict[str, str]) -> None:
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").isalnum():
            raise ValueError(f"{name!r} is not the name of an HTTP header")
        if any(word in name.lower() for word in _SECRET_WORDS) and not secrets.references_in(value):
            raise ValueError(
                f"{name}: secrets are given by reference only: ${{env:NAME}}, ${{file:PATH}} or ${{secret:scope/key}}"
            )


HookUrl = Annotated[
    str,
    checked(partial(require_http_url, example="https://gateway.east:8443/switch", login="headers, with a reference")),
]
HookHeaders = Annotated[dict[str, str], checked(_require_headers)]
MigrationStep = Annotated[migration_steps.Step, Field(strict=False)]
FailoverStep = Annotated[failover_steps.Step, Field(strict=False)]


class HookCall(Section):
    """A command, or an HTTP call."""

    command: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[],
        description="Program and arguments, without a shell; a path with a slash is relative to this file. Reads JSON on stdin.",
    )
    url: HookUrl | None = Field(default=None, description="Instead of a command: an address to POST the JSON to.")
    headers: HookHeaders = Field(default={}, repr=False, description="HTTP headers of the POST; secrets by reference.")
    timeout: Interval = Field(default="1 minute", description="After it the command is killed, or the POST given up: it failed.")

    @property
    def timeout_s(self) -> float:
        return parse_interval(self.timeout)

    def __str__(self) -> str:
        if self.url is None:
            return shlex.join(self.command)
        parts = urllib.parse.urlsplit(self.url)
        return f"POST {parts.scheme}://{parts.netloc}{parts.path}"  # a query may hold a token

    def problems(self) -> list[str]:
        """Return the settings that contradict each other."""
        problems = []
        if bool(self.command) == (self.url is not None):
            problems.append("give either command or url")
        if self.headers and self.url is None:
            problems.append("headers: are those of a url")
        return problems


class Hook(HookCall):
    """What is called at a step. `before` and `after`: one of both is set."""

    name: Name = Field(description="Name of the hook, in messages, in its JSON, and for --skip-hook.")

    @property
    def place(self) -> tuple[Literal["before", "after"], str]:
        """Return whether it is called before or after its step, and the name of the step."""
        before, after = getattr(self, "before", None), getattr(self, "after", None)
        return ("before", str(before)) if before is not None else ("after", str(after))


class StepHook(Hook):
    """A hook of a migration that has no way back of its own."""

    before: MigrationStep | None = Field(default=None, description="The step before which it is called.")
    after: MigrationStep | None = Field(default=None, description="The step after which it is called.")


class MigrationHook(StepHook):
    direction: Literal["both", "move", "rollback"] = Field(
        default="both", description="Of the migration in which it is called: the move, its rollback, or both."
    )
    undo: HookCall | None = Field(
        default=None, description="What `migrate abort` calls after the hook was; only before the point of no return."
    )

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.undo is not None:
            problems += [f"undo: {problem}" for problem in self.undo.problems()]
            last = self.before or self.after
            no_return = migration_steps.Step.POINT_OF_NO_RETURN
            if last is not None and (last.is_behind(no_return) or self.after is no_return):
                problems.append(
                    "undo: is called by `migrate abort`, which is not possible any more behind the point of no return"
                )
        place = self.before or self.after
        if self.direction == "rollback" and place in migration_steps.ONLY_OF_MOVES:
            problems.append(f"direction: a rollback has no step {place}")
        return problems


class FailoverHook(Hook):
    before: FailoverStep | None = Field(default=None, description="The step before which it is called.")
    after: FailoverStep | None = Field(default=None, description="The step after which it is called.")
    undo: HookCall | None = Field(
        default=None, description="What `failover abort` calls after the hook was; not at steps of the way back."
    )

    def problems(self) -> list[str]:
        problems = super().problems()
        if self.undo is not None:
            problems += [f"undo: {problem}" for problem in self.undo.problems()]
            place = self.before or self.after
            if place is not None and place.is_of_way_back:
                problems.append("undo: is called by `failover abort`, which is not possible any more once the way back has begun")
        return problems


H = TypeVar("H", bound=Hook)


def hook_problems(hooks: Sequence[Hook], where: str) -> list[str]:
    """Return what is wrong with hooks. `where`: their key in the file."""
    problems = []
    names = [hook.name for hook in hooks]
    problems += [f"{where}: the name {name} occurs twice" for name in sorted(set(names)) if names.count(name) > 1]
    for hook in hooks:
        place: list[Any] = [getattr(hook, key) for key in ("before", "after")]
        if (place[0] is None) == (place[1] is None):
            problems.append(f"{where}: {hook.name}: give either before or after, with the name of a step")
        problems += [f"{where}: {hook.name}: {problem}" for problem in hook.problems()]
    return problems


def with_absolute_commands(hooks: Sequence[H], folder: Path) -> list[H]:
    """Return the hooks with programs whose paths do not depend on the current folder."""
    return [_with_absolute_command(hook, folder) for hook in hooks]


C = TypeVar("C", bound=HookCall)


def _with_absolute_command(call: C, folder: Path) -> C:
    changes: dict[str, Any] = {}
    if call.command and "/" in call.command[0]:
        # Not what a symbolic link leads to: programs look at the name by which they were called, as that of a venv does.
        changes["command"] = [str(folder / Path(call.command[0]).expanduser()), *call.command[1:]]
    undo = getattr(call, "undo", None)
    if undo is not None:
        changes["undo"] = _with_absolute_command(undo, folder)
    return call.model_copy(update=changes)
