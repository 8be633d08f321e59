"""A world in memory, the rows of its migration, and conductors one after the other."""

from __future__ import annotations

from tests.migration.fake_effects import FakeEffects, FakeOperator, FakeOwner, FakeWorld, Kill

from shallow_mirror.config.migration_config import MigrationConfig, ReverseSettings, WaveSettings, WriterSettings
from shallow_mirror.migration import Phase
from shallow_mirror.migration.conductor import WaveConductor
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.steps import Direction

WAVE = WaveSettings(name="all", topics=["orders.*"], groups=["billing"], reverse="reverse.yaml")


class Stage:
    def __init__(self, *, is_denied: bool = False) -> None:
        self.world = FakeWorld()
        self.operator = FakeOperator(self.world)
        writers = WriterSettings(stop="deny" if is_denied else "wait", principals=["User:shop"] if is_denied else [])
        self.config = MigrationConfig(
            migration="m", mirror="m", waves=[WAVE], writers=writers, reverse=ReverseSettings(start="conductor"), tables="t"
        )
        self.owner = FakeOwner([], Kill(), lambda: int(self.world.now_s * 1000))

    def conductor(self, direction: Direction, kill: Kill, *, waits: bool = True) -> WaveConductor:
        self.owner.kill = kill
        effects = FakeEffects(self.world, direction, kill)
        clock = Clock(monotonic=lambda: self.world.now_s, sleep=self.world.tick, now_ms=lambda: int(self.world.now_s * 1000))
        return WaveConductor(self.config, WAVE, self.owner, effects, self.operator, clock, waits=waits)

    def perform(self, direction: Direction, kill: Kill | None = None) -> Phase:
        conductor = self.conductor(direction, Kill() if kill is None else kill)
        conductor.begin(direction)
        conductor.run()
        return conductor.state().phase

    def abort(self, direction: Direction = Direction.MOVE, kill: Kill | None = None) -> Phase:
        conductor = self.conductor(direction, Kill() if kill is None else kill)
        conductor.abort()
        return conductor.state().phase
