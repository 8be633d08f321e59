"""Second starts of a restore with another file: refused with nothing lost, or taken up where no result changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.random_archives.cuts import Cut
from tests.random_archives.oracle import Oracle
from tests.random_archives.restore_target import RestoreTarget
from tests.random_archives.source_logs import LogRecord

from shallow_mirror.config import RestoreConfig
from shallow_mirror.errors import ConfigError


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A change of the restore file. `groups`: settings to merge. `is_taken_up` None: it depends on what is complete."""

    name: str
    cut: Cut
    is_taken_up: bool | None
    groups: Mapping[str, Any] = field(default_factory=dict)


def random_other_file(chance: random.Random, cut: Cut, oracle: Oracle, prefix: str, *, is_complete: bool) -> OtherFile:
    """Return a change of the file of `cut`. `is_complete`: whether all of it is restored; else it may be."""
    slots = {"write": {"transaction_timeout_ms": 60_000, "slots": chance.randint(1, 5)}}
    changes = [
        OtherFile("slots", cut, True, slots),
        OtherFile("another cut", replace(cut, whole_transactions=not cut.whole_transactions), False),
        OtherFile("another isolation level", replace(cut, is_committed_only=not cut.is_committed_only), False),
        OtherFile("another target name", cut, False, {"topics": {"target_name": f"other-{prefix}{{topic}}"}}),
    ]
    more = tuple(sorted(oracle.newest_topics().keys() - set(cut.topics)))
    if more:
        # Added topics get ranges at the same cut, which has to be there for them too; ends that were lowered stay.
        is_refused = cut.whole_transactions or oracle.expected(replace(cut, topics=more)).refusal is not None
        changes.append(OtherFile("more topics", replace(cut, topics=(*cut.topics, *more)), not is_refused))
    if len(cut.topics) > 1:
        changes.append(OtherFile("fewer topics", replace(cut, topics=cut.topics[:1]), True if is_complete else None))
    return chance.choice(changes)


@dataclass(frozen=True, slots=True)
class SecondStart:
    is_taken_up: bool
    problems: Sequence[str] = ()


def start_with_other_file(
    target: RestoreTarget, config: RestoreConfig, other: OtherFile, read: Callable[[], Mapping[str, Sequence[LogRecord]]]
) -> SecondStart:
    """Start with another file, and return what is wrong with its response. `read`: returns what the target has of each partition."""
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
        return SecondStart(False, [*problems, f"it was refused: {error}"] if other.is_taken_up else problems)
    return SecondStart(True, ["it was not refused"] if other.is_taken_up is False else [])
