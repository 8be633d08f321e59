"""What has to be true at the end: every record is where the readers are, once and in order, and every group has read it once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.operators.history import Outcome
from tests.operators.moves.application import Site, Written

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class Late:
    """Values of late writes that somebody has settled, by the way on that was chosen."""

    carried: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()


@dataclass
class Seen:
    """Everything of one wave at the end. `visible`: values in the order of their offsets, by side and place.

    `read`: how often each group has read each value.
    """

    site: Site
    written: Sequence[Written]
    visible: Mapping[str, Mapping[Place, Sequence[str]]]
    quarantine: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Values in topics of late writes, by side."""
    read: Mapping[str, Counter[str]] = field(default_factory=dict)
    late: Late = Late()
    lost: frozenset[str] = frozenset()
    """Values whose topic somebody has deleted on purpose."""
    is_uncommitted: bool = False
    """The mirrors copy open and aborted transactions as well."""


def check(seen: Seen) -> list[str]:
    """Return every difference; nothing where all is as it should be."""
    return [*_check_places(seen), *_check_order(seen), *_check_groups(seen)]


def _needed(seen: Seen) -> list[Written]:
    return [record for record in seen.written if record.is_visible and not record.is_foreign and record.value not in seen.lost]


def _check_places(seen: Seen) -> Iterator[str]:
    """Check that each record is at the side of the readers, in its partition, once."""
    here = seen.visible[seen.site.side]
    counts = Counter(value for values in here.values() for value in values)
    places = {value: place for place, values in here.items() for value in values}
    for record in _needed(seen):
        where = f"{record.value}, written to {record.topic}-{record.partition} at {record.side}"
        count = counts[record.value]
        if record.value in seen.late.quarantined:
            kept = sum(values.count(record.value) for values in seen.quarantine.values())
            if kept != 1:
                yield f"{where}, is {kept} times in topics of late writes"
            if record.side != seen.site.side and count:
                yield f"{where}, is in quarantine, and at {seen.site.side} as well"
            continue
        if not count:
            yield f"lost: {where}, is not at {seen.site.side}"
            continue
        if places[record.value] != (record.topic, record.partition):
            yield f"moved: {where}, is in {places[record.value]}"
        if count > _most(seen, record):
            yield f"twice: {where}, is at {seen.site.side} {count} times"
    known = {record.value: record for record in seen.written}
    for place, values in here.items():
        for value in values:
            if value not in known:
                yield f"{value} in {place} was never written"
            elif not seen.is_uncommitted and (txn := known[value].txn) is not None and txn.outcome is not Outcome.COMMITTED:
                yield f"{value} in {place} is visible, although its transaction was not committed"


def _most(seen: Seen, record: Written) -> int:
    """Return how often a record may be there: what was carried away and came back with the wave is there as its copy, too."""
    return 2 if record.value in seen.late.carried and record.side == seen.site.side else 1


def _check_order(seen: Seen) -> Iterator[str]:
    """Check that the records of each stay are in the order of their offsets, behind those of the stay before.

    Without late writes: they come behind what was there.
    """
    is_late = seen.late.carried | seen.late.quarantined
    expected: defaultdict[Place, list[Written]] = defaultdict(list)
    for record in _needed(seen):
        if record.value not in is_late:
            expected[record.topic, record.partition].append(record)
    for place, records in expected.items():
        at = {value: number for number, value in enumerate(seen.visible[seen.site.side].get(place, ()))}
        records.sort(key=lambda record: (record.stay, record.offset))
        order = [record.value for record in records if record.value in at]
        for before, after in pairwise(order):
            if at[before] > at[after]:
                yield f"reordered: {after} lies in front of {before} in {place} at {seen.site.side}"
                break


def _check_groups(seen: Seen) -> Iterator[str]:
    here = {value for values in seen.visible[seen.site.side].values() for value in values}
    for group, read in seen.read.items():
        for record in _needed(seen):
            count, value = read[record.value], record.value
            if value in seen.late.quarantined:
                continue
            most = 2 if value in seen.late.carried else 1
            if not count and value in here:
                yield f"group {group} has never read {value}, written to {record.topic}-{record.partition} at {record.side}"
            elif count > most:
                yield f"group {group} has read {value}, written to {record.topic}-{record.partition} at {record.side}, {count} times"
