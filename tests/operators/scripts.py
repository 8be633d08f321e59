"""Scripts of actions: made of a seed, performed in a world of their own, and shortened where one finds something.

Not a state machine of Hypothesis: a seed is a script whatever was found before, and a run costs too much for an engine that draws
each value and performs a script again to learn about it. Actions name things by number, so that a script without one of its
actions is a script: shortening drops actions while the same is found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.operators import actions
from tests.operators.actions import Action, run_until_done
from tests.operators.surroundings import opened_world
from tests.operators.world import FindingError, World

T = TypeVar("T")

_ROUNDS = (2, 5)
_PRESERVED = 0.3
"""So many mirrors preserve offsets from their begin."""
_EFFECTS = 60
_REQUESTS = 120


@dataclass
class Done:
    """`finding`: what differed, or None. `events`: what happened in between."""

    finding: str | None
    events: Sequence[str]
    runs: int = 0
    kills: int = 0
    remedies: int = 0
    records: int = 0

    def add(self, other: Done) -> None:
        self.runs += other.runs
        self.kills += other.kills
        self.remedies += other.remedies
        self.records += other.records


def _write(chance: random.Random) -> Action:
    return actions.Write(chance.randrange(2), chance.randrange(3), chance.randint(1, 3))


def _share(chance: random.Random) -> int:
    return chance.choice((0, 30, 60, 100))


Make = Callable[[random.Random], Action]

_SOURCE: Sequence[tuple[float, Make]] = (
    (6, _write),
    (3, lambda chance: actions.Begin(chance.randrange(2), chance.randrange(3), chance.randint(1, 2))),
    (3, lambda chance: actions.End(chance.random() < 0.6)),
    (0.7, lambda chance: actions.DeleteRecords(chance.randrange(2), chance.randrange(3), _share(chance))),
    (0.4, lambda chance: actions.DeleteTopic(chance.randrange(2))),
    (0.6, lambda chance: actions.CreateTopic(chance.randrange(2), chance.randint(1, 2))),
    (0.5, lambda chance: actions.GrowTopic(chance.randrange(2))),
    (1.5, lambda chance: actions.CommitGroup(chance.randrange(2), chance.randrange(2), chance.randrange(3), _share(chance))),
)
_TARGET: Sequence[tuple[float, Make]] = (
    (0.4, lambda chance: actions.GrowTargetTopic(chance.randrange(2))),
    (0.3, lambda chance: actions.DeleteTargetTopic(chance.randrange(2))),
    (0.5, lambda chance: actions.DeleteTargetRecords(chance.randrange(2), chance.randrange(3), _share(chance))),
    (0.7, lambda chance: actions.ForeignWrite(chance.randrange(2), chance.randrange(3))),
)
_CONTROLS: Sequence[tuple[float, Make]] = (
    (1, lambda chance: actions.Pause(chance.randrange(2))),
    (1, lambda chance: actions.Resume(chance.randrange(2))),
    (0.6, lambda chance: actions.HandOver(chance.randrange(2))),
    (0.8, lambda chance: actions.TakeBack(chance.randrange(2))),
    (1.5, lambda _: actions.SyncGroups()),
)
_MEANWHILE = (*_SOURCE, *_TARGET, *_CONTROLS)


def _run(chance: random.Random) -> Action:
    kill_at = chance.randint(1, _EFFECTS) if chance.random() < 0.4 else 0
    during = _choose(_MEANWHILE, chance) if chance.random() < 0.3 else None
    during_at = chance.randint(1, _REQUESTS) if during else 0
    return actions.Run(kill_at, chance.random() < 0.5, during_at, during, chance.randrange(1_000_000), chance.random() < 0.15)


_BETWEEN: Sequence[tuple[float, Make]] = (
    *_TARGET,
    *_CONTROLS,
    (0.7, lambda chance: actions.CopyTables(chance.random() < 0.5)),
    (2.5, lambda chance: actions.PutBackTables(chance.choice((0, 1, 1, 2, 3)))),
    (0.7, lambda _: actions.LoseCheckpoint()),
    (1, lambda chance: actions.Idle(chance.choice((1, 13, 30)))),
    (0.7, lambda chance: actions.SetIsolation(chance.choice(("read_committed", "read_uncommitted")))),
    (0.7, lambda chance: actions.SetDataLoss(chance.choice(("stop", "continue")))),
    (0.5, lambda chance: actions.SetOffsets(chance.choice(("translated", "preserved", "continued")))),
)


_COMMAND_EFFECTS = 30


def _kill_at(chance: random.Random) -> tuple[int, bool]:
    """Return where a command is killed, 0 mostly, and whether behind that effect."""
    return (chance.randint(1, _COMMAND_EFFECTS) if chance.random() < 0.3 else 0), chance.random() < 0.5


_QUARANTINE: Sequence[tuple[float, Make]] = (
    (2, lambda chance: actions.WriteLarge(chance.randrange(2), chance.randrange(3))),
    (2, lambda chance: actions.LimitTarget(chance.randrange(2), chance.random() < 0.8)),
    (1.5, lambda chance: actions.SetRefused(chance.choice(("stop", "quarantine", "quarantine")))),
    (0.7, lambda _: actions.ListQuarantine()),
    (2, lambda chance: actions.RetryQuarantine(chance.choice((None, 0, 1)), chance.random() < 0.6, *_kill_at(chance))),
)
_COALESCE: Sequence[tuple[float, Make]] = (
    (2, lambda chance: actions.SetCoalesce(chance.choice((None, "auto", 65_536, 1_048_576)))),
    (1, lambda chance: actions.SetTargetCompression(chance.randrange(2), chance.choice(("lz4", "producer")))),
    (2, _write),
)

_GROUPS: Sequence[tuple[float, Make]] = (
    (3, lambda chance: actions.ResetTargetGroup(chance.randrange(2), chance.randrange(2), chance.randrange(3), _share(chance))),
    (2, lambda chance: actions.CommitGroup(chance.randrange(2), chance.randrange(2), chance.randrange(3), _share(chance))),
    (3, lambda _: actions.SyncGroupsBeside()),
    (1, lambda _: actions.SyncGroups()),
    (1, lambda chance: actions.HandOver(chance.randrange(2))),
    (1, lambda chance: actions.TakeBack(chance.randrange(2))),
)

_CLASSES: Mapping[str, Make] = {
    "quarantine": lambda chance: _choose(_QUARANTINE, chance),
    "redo": lambda chance: actions.Redo(
        chance.randrange(2), chance.randrange(3), _share(chance), chance.choice((10, 40, 100)), *_kill_at(chance)
    ),
    "coalesce": lambda chance: _choose(_COALESCE, chance),
    "beside": lambda chance: actions.Run(
        0, False, chance.randint(1, _REQUESTS), actions.RunBeside(), chance.randrange(1_000_000)
    ),
    "forget": lambda chance: actions.ForgetTopic(chance.randrange(2)),
    "groups": lambda chance: _choose(_GROUPS, chance),
}
"""Further actions by the name of their class. They are put into the script of a seed, which is otherwise what it is without."""
CLASSES = tuple(_CLASSES)
_COUNTS: Mapping[str, Sequence[int]] = {"quarantine": (4, 6, 8), "coalesce": (2, 3, 4), "groups": (4, 6, 8)}
"""How many of each class a script has, where several have to meet."""


def _choose(weighted: Sequence[tuple[float, Make]], chance: random.Random) -> Action:
    (make,) = chance.choices([make for _, make in weighted], [weight for weight, _ in weighted])
    return make(chance)


def script_of(seed: int, classes: Sequence[str] = ()) -> list[Action]:
    """Return rounds: something happens at the source, an operator may act, and the mirror runs.

    `classes`: further actions, a few of each.
    """
    chance = random.Random(seed)
    script: list[Action] = [actions.SetOffsets("preserved")] if chance.random() < _PRESERVED else []
    for _ in range(chance.randint(*_ROUNDS)):
        script += [_choose(_SOURCE, chance) for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))]
        script += [_choose(_BETWEEN, chance) for _ in range(chance.choice((0, 0, 1, 1, 2)))]
        script.append(_run(chance))
    for name in classes:
        more = random.Random(f"{seed} {name}")
        for _ in range(more.choice(_COUNTS.get(name, (1, 1, 2, 3)))):
            script.insert(more.randint(0, len(script)), _CLASSES[name](more))
    return script


def perform(script: Sequence[Action], folder: Path) -> Done:
    """Perform a script in a new world in memory, as `perform_in`."""
    with opened_world(folder) as world:
        return perform_in(world, script)


def perform_in(world: World, script: Sequence[Action]) -> Done:
    """Perform a script, then let everything come to an end: all is copied, however the script left it."""
    for topic, partitions in zip(world.topics, (2, 1), strict=True):
        world.create_source_topic(topic, partitions)
    finding = None
    try:
        for action in script:
            world.events.append(repr(action))
            action.perform(world)
        world.events.append("end")
        _finish(world)
    except FindingError as found:
        finding = str(found)
    except AssertionError as failed:
        finding = f"AssertionError: {failed}"
    except Exception as error:  # noqa: BLE001 - whatever is no error of the package is a finding
        finding = f"{type(error).__name__}: {error}"
    return Done(finding, world.events, world.runs, world.kills, world.remedies, world.records)


def _finish(world: World) -> None:
    for txn in list(world.open_txns):
        world.end_txn(txn, is_commit=True)
    if world.has_tables():
        world.controls().add("resume", world.topics)
        world.controls().add("take-back", world.topics)
    run_until_done(world, 0)


def shortened(
    script: Sequence[T], folder: Path, is_alike: Callable[[str], bool], perform: Callable[[Sequence[Any], Path], Done] = perform
) -> list[T]:
    """Drop actions while something is found that is alike."""
    kept = list(script)
    has_changed = True
    while has_changed:
        has_changed = False
        for number in range(len(kept) - 1, -1, -1):
            shorter = kept[:number] + kept[number + 1 :]
            finding = perform(shorter, folder).finding
            if finding is not None and is_alike(finding):
                kept, has_changed = shorter, True
    return kept
