"""Pure: order of registration: the references of a schema come first, and a subject's lower versions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from shallow_mirror.schemas.subject_versions import SubjectVersion

_Key = tuple[str, int]


def registration_order(versions: Iterable[SubjectVersion]) -> list[SubjectVersion]:
    """Return the versions in order.

    References to others are ignored, and so is one that closes a cycle, which a registry rejects.
    """
    by_key = {version.key: version for version in sorted(versions, key=lambda version: (version.id, version.key))}
    before = _versions_before(by_key)
    ordered: dict[_Key, SubjectVersion] = {}
    entered: set[_Key] = set()
    for key in by_key:
        _visit(key, by_key, before, ordered, entered)
    return list(ordered.values())


def _versions_before(by_key: Mapping[_Key, SubjectVersion]) -> dict[_Key, Sequence[_Key]]:
    """Return for each version those to register before it."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for subject, number in sorted(by_key):
        numbers[subject].append(number)
    lower = {
        (subject, number): (subject, previous)
        for subject, of_subject in numbers.items()
        for previous, number in itertools.pairwise(of_subject)
    }
    return {key: [*version.referenced_keys, *([lower[key]] if key in lower else [])] for key, version in by_key.items()}


def _visit(
    key: _Key,
    by_key: Mapping[_Key, SubjectVersion],
    before: Mapping[_Key, Sequence[_Key]],
    ordered: dict[_Key, SubjectVersion],
    entered: set[_Key],
) -> None:
    """Add a version behind its predecessors, without recursion: a subject may have thousands of versions."""
    path = [key]
    while path:
        current = path[-1]
        entered.add(current)
        waits_for = next((other for other in before[current] if other in by_key and other not in entered), None)
        if waits_for is None:
            ordered.setdefault(current, by_key[current])
            path.pop()
        else:
            path.append(waits_for)
