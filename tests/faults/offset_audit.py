"""Preserved offsets as consumers see them: each reads both clusters, the target in both isolation levels.

Every record of the source has to be on the target at its own offset, once, and nothing else may be there.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka.admin import AdminClient
from tests.faults.end_offsets import settled_end_offsets
from tests.faults.range_readers import JavaReaderError, Ranges, ReadRanges

from shallow_mirror.demo.history import History, compare_histories
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import IsolationLevel, TopicPartition

_SHOWN = 5
"""Shifted records of a partition that are named one by one."""


class OffsetAudit:
    """`readers` by their names; each continues where it was at its last audit. Addresses are those of the clusters themselves."""

    def __init__(self, source: str, target: str, readers: Mapping[str, ReadRanges]) -> None:
        self._source = source
        self._target = target
        self._readers = readers
        self._in_turn = itertools.cycle(readers)
        self._until: dict[str, Mapping[TopicPartition, int]] = {name: {} for name in readers}

    def differences(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Have the reader whose turn it is read what came up to `ends`, of every partition, since its last turn."""
        name = next(self._in_turn)
        before = self._until[name]
        self._until[name] = dict(ends)
        return self._differences_of(name, {key: (before.get(key, 0), end) for key, end in ends.items()})

    def differences_of_everything(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Have every reader read from the first offset up to `ends`, and compare where the logs of both clusters end.

        To be called when nothing is written any more and the mirror has caught up.
        """
        ranges = {key: (0, end) for key, end in ends.items()}
        found = [difference for name in self._readers for difference in self._differences_of(name, ranges)]
        return [*found, *self._different_ends(ends)]

    def _differences_of(self, name: str, ranges: Ranges) -> list[str]:
        read = self._readers[name]
        differences = []
        try:
            source = read(self._source, IsolationLevel.READ_COMMITTED, ranges)
            for isolation in IsolationLevel:
                target = read(self._target, isolation, ranges)
                differences += differences_of_reading(source, target, f"{name}, {isolation.value}")
        except (JavaReaderError, RetriableError) as error:
            differences.append(f"unread: {name}: {error}")
        return differences

    def _different_ends(self, keys: Collection[TopicPartition]) -> Iterable[str]:
        admins = [AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) for bootstrap in (self._source, self._target)]
        for isolation in IsolationLevel:
            source, target = (settled_end_offsets(admin, keys, isolation) for admin in admins)
            for key in sorted(source):
                if source[key] != target[key]:
                    yield f"end: {key}: the log ends at {source[key]} and at {target[key]} on the target ({isolation.value})"


def differences_of_reading(
    source: Mapping[TopicPartition, History], target: Mapping[TopicPartition, History], reader: str
) -> list[str]:
    """Pure: return how the readings of a consumer differ, each with its kind and a colon first. `reader`: its name and level."""
    differences = []
    for key, original in sorted(source.items()):
        compared = compare_histories(key, original, target[key])
        shifts = [f"offset: {key}: the record of offset {a} is at {b}" for a, b in compared.pairs.tolist() if a != b]
        if len(shifts) > _SHOWN:
            shifts[_SHOWN:] = [f"offset: {key}: {len(shifts) - _SHOWN} more records are at other offsets"]
        differences += [f"{difference} ({reader})" for difference in (*map(str, compared.differences), *shifts)]
    return differences
