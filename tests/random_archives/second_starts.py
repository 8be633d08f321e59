"""Second starts of a restore with another file: refused with nothing lost, or taken up where topics are added only."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.random_archives.cuts import Cut
from tests.random_archives.features import Feature
from tests.random_archives.restore_target import RestoreTarget
from tests.random_archives.source_logs import LogRecord

from shallow_mirror.config import RestoreConfig
from shallow_mirror.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A change of the restore file. `groups`: settings to merge. `may_be_taken_up`: it adds topics, or changes no result."""

    name: str
    cut: Cut
    groups: Mapping[str, Any]
    features: frozenset[Feature]
    may_be_taken_up: bool = False


def random_other_file(chance: random.Random, cut: Cut, names: Sequence[str], prefix: str) -> OtherFile:
    """Return a change of the file of `cut`. `names`: the archive's topics."""
    other = frozenset({Feature.OTHER_FILE})
    changes = [
        OtherFile("slots", cut, {"write": {"transaction_timeout_ms": 60_000, "slots": chance.randint(1, 5)}}, frozenset(), True),
        OtherFile("another cut", replace(cut, whole_transactions=not cut.whole_transactions), {}, frozenset()),
        OtherFile("another isolation level", replace(cut, is_committed_only=not cut.is_committed_only), {}, other),
        OtherFile("another target name", cut, {"topics": {"target_name": f"other-{prefix}{{topic}}"}}, other),
    ]
    more = tuple(name for name in names if name not in cut.topics)
    if more:
        changes.append(OtherFile("more topics", replace(cut, topics=(*cut.topics, *more)), {}, other, True))
    if len(cut.topics) > 1:
        changes.append(OtherFile("fewer topics", replace(cut, topics=cut.topics[:1]), {}, other))
    return chance.choice(changes)


@dataclass(frozen=True, slots=True)
class Answer:
    is_taken_up: bool
    problems: Sequence[str] = ()


def start_with_other_file(
    target: RestoreTarget, config: RestoreConfig, other: OtherFile, read: Callable[[], Mapping[str, Sequence[LogRecord]]]
) -> Answer:
    """Start with another file, and return what is wrong with its answer. `read`: returns what the target has of each partition."""
    before = read()
    try:
        target.restore(config)
    except ConfigError as error:
        # Its recovery may have ended a transaction that the start before had decided: records may follow, none may be gone.
        after = read()
        problems = [
            f"it was refused, and {name} has other records than before: {error}"
            for name, records in before.items()
            if after[name][: len(records)] != records
        ]
        if other.may_be_taken_up and Feature.OTHER_FILE not in other.features:
            problems.append(f"it was refused: {error}")
        return Answer(False, problems)
    return Answer(True, [] if other.may_be_taken_up else ["it was not refused"])
