"""Commands of a migration's operator, with what happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.operators.lives import Life
from tests.operators.moves.moving_world import MovingWorld
from tests.operators.moves.operator import Operator
from tests.operators.moves.processes import Process

from shallow_mirror.errors import MirrorError
from shallow_mirror.migration import (
    Choice,
    Options,
    Phase,
    abort,
    plan_migration,
    release_sentences,
    roll_back,
    run_migration,
    settle_late_writes,
)
from shallow_mirror.migration.steps import Step

Command = Literal["plan", "run", "rollback", "abort", "carry", "quarantine"]


@dataclass(frozen=True)
class Kill:
    """At an effect of the conductor, counted from the begin of a step; None: of the command. `is_behind`: it had its effect."""

    step: Step | None
    effect: int
    is_behind: bool


@dataclass(frozen=True)
class Meanwhile:
    """Something that happens at a request of the conductor, counted from the begin of a step; None: of the command.

    `suspends_s`: how long the conductor is suspended then.
    """

    step: Step | None
    request: int
    happens: Callable[[], None]
    suspends_s: float = 0.0


@dataclass
class Commands:
    world: MovingWorld
    operator: Operator = field(init=False)
    others: list[Process] = field(default_factory=list)
    """Conductors that run elsewhere."""

    def __post_init__(self) -> None:
        self.operator = Operator(self.world)

    def perform(
        self,
        command: Command,
        *,
        kill: Kill | None = None,
        meanwhile: Sequence[Meanwhile] = (),
        takes_over: bool = False,
    ) -> MirrorError | None:
        """Perform a command. Return the error that ended it."""
        world, life = self.world, Life()
        world.events.append(f"$ migrate {command}")
        world.migration_copies.append(world.migration_table.copy())
        due: list[tuple[int, Meanwhile]] = []
        waiting = list(meanwhile)

        def on_step(step: Step | None) -> None:
            nonlocal waiting
            process = world.processes.current
            if process is not None and process.life is not life:
                return
            requests = 0 if process is None else process.requests
            due.extend((requests + each.request, each) for each in waiting if each.step is step)
            waiting = [each for each in waiting if each.step is not step]
            if kill is not None and kill.step is step and life.kill_at is None:
                life.kill_at, life.is_behind = life.effects + kill.effect, kill.is_behind

        def on_request(process: Process) -> None:
            if process.life is not life:
                return
            for each in [each for each in due if each[0] <= process.requests]:
                due.remove(each)
                world.processes.at(0.0, each[1].happens)
                world.processes.sleep(each[1].suspends_s)

        on_step(None)
        self.operator.on_step, world.on_request = on_step, on_request
        try:
            return world.command(command, lambda: self._perform(command, takes_over=takes_over), life)
        finally:
            self.operator.on_step, world.on_request = lambda _: None, lambda _: None

    def begin_another(self, command: Command) -> None:
        """Perform the same command elsewhere as well, with --take-over."""
        self.world.events.append(f"$ migrate {command} --take-over, elsewhere")
        self.others.append(self.world.processes.start(command, lambda: self._perform(command, takes_over=True)))

    def await_others(self) -> None:
        """Let other conductors come to their ends."""
        self.world.await_progress(lambda: all(process.is_over for process in self.others))
        self.others.clear()

    def _perform(self, command: Command, *, takes_over: bool) -> None:
        world, files = self.world, self.world.files
        options = Options(clock=world.wall_clock, launch=world.launch, takes_over=takes_over)
        match command:
            case "plan":
                plan_migration(files)
            case "run":
                run_migration(files, self.operator, options)
            case "rollback":
                roll_back(files, self.operator, options=options)
            case "abort":
                wave = abort(files, self.operator, options).wave
                if wave is not None:
                    alias = "east" if wave.phase is Phase.AT_SOURCE else "west"
                    for sentence in release_sentences(files.wave(wave.name), alias):
                        self.operator.says(f"{wave.name}: {sentence}")
            case "carry" | "quarantine":
                settle_late_writes(files, self.operator, Choice(command), options=options)
