"""A world in memory, the rows of its migration, and conductors one after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.migration.fake_effects import FakeEffects, FakeOperator, FakeOwner, FakeWorld, Kill

from shallow_mirror.config.conductor_config import ReverseSettings, WriterSettings
from shallow_mirror.config.hook_settings import HookCall, MigrationHook
from shallow_mirror.config.migration_config import MigrationConfig, WaveSettings
from shallow_mirror.migration import Phase
from shallow_mirror.migration.conductor import WaveConductor
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.hooks.hook_call import CallFailedError
from shallow_mirror.migration.steps import Direction

WAVE = WaveSettings(name="all", topics=["orders.*"], groups=["billing"], reverse="reverse.yaml")


class FakeHooks:
    """Calls of hooks, in memory. `failing`: names of hooks that fail, and how often. A killed call has happened, or has not."""

    def __init__(self) -> None:
        self.kill = Kill()
        self.calls: list[tuple[str, str]] = []
        self.documents: list[Mapping[str, Any]] = []
        self.effects: dict[str, int] = {}
        """How often each hook is in force: an effect by its id."""
        self.failing: dict[str, int] = {}

    def __call__(self, call: HookCall, document: Mapping[str, Any]) -> None:
        self.kill()
        name, action = document["hook"], document["action"]
        self.calls.append((name, action))
        self.documents.append(document)
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            raise CallFailedError("exit code 3: no such gateway")
        self.effects[name] = 1 if action == "do" else 0
        self.kill()


class Stage:
    def __init__(self, *, is_denied: bool = False, hooks: Sequence[MigrationHook] = ()) -> None:
        self.world = FakeWorld()
        self.hooks = FakeHooks()
        self.operator = FakeOperator(self.world)
        writers = WriterSettings(stop="deny" if is_denied else "wait", principals=["User:shop"] if is_denied else [])
        self.config = MigrationConfig(
            migration="m",
            mirror="m",
            waves=[WAVE],
            writers=writers,
            reverse=ReverseSettings(start="conductor"),
            tables="t",
            hooks=list(hooks),
        )
        self.owner = FakeOwner([], Kill(), lambda: int(self.world.now_s * 1000))

    def conductor(
        self, direction: Direction, kill: Kill, *, waits: bool = True, skipped_hooks: Collection[str] = ()
    ) -> WaveConductor:
        self.owner.kill = self.hooks.kill = kill
        effects = FakeEffects(self.world, direction, kill)
        clock = Clock(monotonic=lambda: self.world.now_s, sleep=self.world.tick, now_ms=lambda: int(self.world.now_s * 1000))
        return WaveConductor(
            self.config,
            WAVE,
            self.owner,
            effects,
            self.operator,
            clock,
            waits=waits,
            skipped_hooks=skipped_hooks,
            call=self.hooks,
        )

    def perform(self, direction: Direction, kill: Kill | None = None) -> Phase:
        conductor = self.conductor(direction, Kill() if kill is None else kill)
        conductor.begin(direction)
        conductor.run()
        return conductor.state().phase

    def abort(self, direction: Direction = Direction.MOVE, kill: Kill | None = None) -> Phase:
        conductor = self.conductor(direction, Kill() if kill is None else kill)
        conductor.abort()
        return conductor.state().phase
