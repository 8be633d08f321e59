"""Scripts of migrations: made of a seed, performed in a world of their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.operators import scripts
from tests.operators.findings import alike, told
from tests.operators.moves import actions
from tests.operators.moves.actions import Action, Conduct, Let, drive
from tests.operators.moves.commands import Command, Commands, Kill
from tests.operators.moves.moving_world import MovingWorld, Setting
from tests.operators.moves.surroundings import opened_world
from tests.operators.scripts import Done
from tests.operators.world import FindingError

from shallow_mirror.migration import Phase, read_late_writes
from shallow_mirror.migration.steps import Step

_COMMANDS: Sequence[tuple[Command, ...]] = (
    ("run",),
    ("run", "rollback"),
    ("run", "rollback"),
    ("plan", "run", "rollback"),
    ("run", "abort", "run", "rollback"),
    ("run", "run", "rollback", "rollback"),
    ("run", "rollback", "abort", "rollback"),
)
_EFFECTS, _REQUESTS = 6, 40

Make = Callable[[random.Random], Action]

_CLIENTS: Sequence[tuple[float, Make]] = (
    (5, lambda chance: actions.ClientWrites(chance.randrange(3), chance.randrange(3), chance.randint(1, 2))),
    (2, lambda chance: actions.ClientWrites(chance.randrange(3), chance.randrange(3), 1, True)),
    (2, lambda chance: actions.ClientBegins(chance.randrange(3), chance.randrange(3))),
    (0.5, lambda chance: actions.ClientBegins(chance.randrange(3), chance.randrange(3), True)),
    (2, lambda chance: actions.ClientEnds(chance.random() < 0.6)),
    (1.5, lambda chance: actions.WritersComeAgain(chance.randrange(2))),
    (2, lambda chance: actions.ConsumersComeAgain(chance.randrange(2))),
    (1, lambda chance: actions.StopConsumers(chance.randrange(2))),
    (
        2,
        lambda chance: actions.ResetGroup(
            chance.randrange(4), chance.randrange(3), chance.randrange(3), chance.choice((0, 50, 100))
        ),
    ),
)
_OPERATORS: Sequence[tuple[float, Make]] = (
    (1.5, lambda chance: actions.CreateTopic(chance.randrange(2), chance.randint(1, 2))),
    (1.5, lambda chance: actions.GrowTopic(chance.randrange(3))),
    (0.7, lambda chance: actions.GrowTopic(chance.randrange(3), True)),
    (0.5, lambda chance: actions.DeleteTopic(chance.randrange(3))),
    (1.5, lambda chance: actions.PauseTopic(chance.randrange(3))),
    (2, lambda chance: actions.KillMirror(chance.randrange(3))),
    (1.5, lambda chance: actions.StopMirror(chance.randrange(3), chance.choice((0, 5, 30)))),
    (1.5, lambda chance: actions.PutBackTables(chance.randrange(3), chance.randrange(4))),
    (0.7, lambda _: actions.DeleteDenies()),
)
_ALL = (*_CLIENTS, *_OPERATORS)


@dataclass(frozen=True)
class Script:
    setting: Setting
    actions: tuple[Action, ...]


def _choose(weighted: Sequence[tuple[float, Make]], chance: random.Random) -> Action:
    (make,) = chance.choices([make for _, make in weighted], [weight for weight, _ in weighted])
    return make(chance)


def _step(chance: random.Random) -> Step | None:
    steps: Sequence[Step | None] = (None, *Step)
    return chance.choice(steps)


def _conduct(command: Command, chance: random.Random) -> Action:
    kill = Kill(_step(chance), chance.randint(1, _EFFECTS), chance.random() < 0.5) if chance.random() < 0.4 else None
    meanwhile = tuple(
        (_step(chance), chance.randint(1, _REQUESTS), _choose(_ALL, chance)) for _ in range(chance.choice((0, 0, 1, 2, 3)))
    )
    if chance.random() < 0.1:
        meanwhile += ((_step(chance), chance.randint(1, _REQUESTS), actions.AnotherConductor(command == "rollback")),)
    return Conduct(command, kill, meanwhile, chance.randrange(1_000_000))


def script_of(seed: int) -> Script:
    chance = random.Random(seed)
    setting = Setting(
        waves=chance.choice((("ab",), ("ab",), ("a", "b"))),
        is_denied=chance.random() < 0.25,
        is_started_by_conductor=chance.random() < 0.5,
        isolation="read_committed" if chance.random() < 0.85 else "read_uncommitted",
        quiet=chance.choice(("auto", "2 seconds", "2 seconds", "2 seconds")),
        pauses=chance.choice((0, 0, 1, 5)),
        seed=seed,
    )
    script: list[Action] = [Let(chance.choice((10, 20)))]
    for command in chance.choice(_COMMANDS):
        script += [_choose(_ALL, chance) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
        if chance.random() < 0.5:
            script.append(Let(chance.choice((2, 10))))
        script.append(_conduct(command, chance))
    more = random.Random(f"{seed} table of the migration")
    if more.random() < 0.15:
        script.insert(more.randint(2, len(script)), actions.PutBackMigration(more.randrange(3)))
    return _with_late_additions(Script(setting, tuple(script)), seed)


def _with_late_additions(script: Script, seed: int) -> Script:
    """Add actions that came later, so that a seed has the history that it always had otherwise."""
    chance = random.Random(f"{seed} tables of a running mirror")
    if chance.random() < 0.2:
        script = _with_action(script, actions.PutBackTables(chance.randrange(3), chance.randrange(4), is_running=True), chance)
    if random.Random(f"{seed} plain names").random() < 0.25:
        script = replace(script, setting=replace(script.setting, has_plain_names=True))
    chance = random.Random(f"{seed} topics that are created again")
    if chance.random() < 0.3:
        script = _with_action(script, actions.RecreateTopic(chance.randrange(3), chance.random() < 0.5), chance)
    chance = random.Random(f"{seed} missing tables")
    if chance.random() < 0.2:
        script = _with_action(script, actions.LoseTables(chance.randrange(3)), chance)
    return script


def _with_action(script: Script, action: Action, chance: random.Random) -> Script:
    """Return the script with one more action: between its actions, or during one of its commands."""
    commands = [number for number, each in enumerate(script.actions) if isinstance(each, Conduct)]
    if chance.random() < 0.4:
        at = chance.randint(1, len(script.actions))
        return replace(script, actions=(*script.actions[:at], action, *script.actions[at:]))
    at = chance.choice(commands)
    conduct = script.actions[at]
    assert isinstance(conduct, Conduct)
    meanwhile = (*conduct.meanwhile, (_step(chance), chance.randint(1, _REQUESTS), action))
    return replace(script, actions=(*script.actions[:at], replace(conduct, meanwhile=meanwhile), *script.actions[at + 1 :]))


def perform(script: Script, folder: Path) -> Done:
    """Perform a script in a new world, then let everything come to an end: what is under way is finished."""
    with opened_world(folder, script.setting) as world:
        finding = _finding(world, script)
    records = len(world.application.written)
    return Done(finding, world.events, world.runs, world.kills, world.remedies, records)


def explained(seed: int, finding: str, folder: Path, script: Script) -> str:
    """Return the finding of a seed, and the shortest script that has it, with what happened."""
    return told(seed, perform(shortened(script, folder, alike(finding)), folder))


def shortened(script: Script, folder: Path, is_alike: Callable[[str], bool]) -> Script:
    """Drop actions, then kills and what happens during commands, while something is found that is alike."""

    def perform_actions(kept: Sequence[Action], world: Path) -> Done:
        return perform(replace(script, actions=tuple(kept)), world)

    kept = scripts.shortened(script.actions, folder, is_alike, perform_actions)
    for number, action in enumerate(kept):
        for simpler in _simpler(action) if isinstance(action, Conduct) else ():
            shorter = [*kept[:number], simpler, *kept[number + 1 :]]
            finding = perform_actions(shorter, folder).finding
            if finding is not None and is_alike(finding):
                kept = shorter
                break
    return replace(script, actions=tuple(kept))


def _simpler(command: Conduct) -> Iterator[Conduct]:
    """Yield commands during which less happens, the simplest one first."""
    yield replace(command, kill=None, meanwhile=())
    yield replace(command, meanwhile=())
    for each in command.meanwhile:
        yield replace(command, kill=None, meanwhile=(each,))
    yield replace(command, kill=None)


def _finding(world: MovingWorld, script: Script) -> str | None:
    commands = Commands(world)
    try:
        world.begin()
        for action in script.actions:
            world.events.append(repr(action))
            action.perform(commands)
        world.events.append("end")
        _finish(commands)
    except FindingError as found:
        return None if world.has_diverged else str(found)
    except AssertionError as failed:
        return f"AssertionError: {failed}"
    except Exception as error:  # noqa: BLE001 - whatever is no error of the package is a finding
        return f"{type(error).__name__}: {error}"
    return None


def _finish(commands: Commands) -> None:
    """Finish what is under way, settle late writes, and compare everything."""
    world = commands.world
    chance = random.Random(world.setting.seed)
    under_way = world.state().under_way
    if under_way is not None:
        drive(commands, "run" if under_way.phase is Phase.MOVING else "rollback", chance)
    world.come_to_rest()
    if any(late.writes for late in read_late_writes(world.files, world.state()).values()):
        drive(commands, chance.choice(("carry", "quarantine")), chance)
    world.let(30)
    differences = world.check()
    if differences:
        raise FindingError("; ".join(differences[:3]) + (f"; {len(differences) - 3} more" if len(differences) > 3 else ""))
