"""Pure: which rows of the offset map a plan compares to measure how long the comparison of all of them takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shallow_mirror.migration.observations import MappedEnd
from shallow_mirror.types import TopicPartition

MOST_BYTES = 16 << 20
"""At most so much is compared for a plan; of less, everything."""


class MappedRow(NamedTuple):
    """A row of the offset map, as far as a sample needs it. `target_end` None: nothing of it was written."""

    source: TopicPartition
    source_start: int
    source_end: int
    target_end: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSample:
    """The last rows of each partition: those behind `after`, `sample_bytes` of all `held_bytes`. Both count one cluster."""

    after: dict[TopicPartition, MappedEnd]
    sample_bytes: int
    held_bytes: int

    @property
    def is_whole(self) -> bool:
        return self.sample_bytes == self.held_bytes


def choose_sample(rows: Iterable[MappedRow], most_bytes: int = MOST_BYTES) -> ComparisonSample:
    """Return everything if that is little, otherwise the last rows of each partition, as many bytes of each."""
    partitions: defaultdict[TopicPartition, list[MappedRow]] = defaultdict(list)
    for row in rows:
        partitions[row.source].append(row)
    held_bytes = sum(row.size_bytes for of_partition in partitions.values() for row in of_partition)
    share = most_bytes if held_bytes <= most_bytes else most_bytes // len(partitions)
    after, sample_bytes = {}, 0
    for source, of_partition in partitions.items():
        of_partition.sort(key=lambda row: row.source_start)
        first, size_bytes = len(of_partition), 0
        while first and size_bytes + of_partition[first - 1].size_bytes <= share:
            first -= 1
            size_bytes += of_partition[first].size_bytes
        if first:
            target_end = max((row.target_end for row in of_partition[:first] if row.target_end is not None), default=0)
            after[source] = MappedEnd(of_partition[first - 1].source_end, target_end)
        sample_bytes += size_bytes
    return ComparisonSample(after=after, sample_bytes=sample_bytes, held_bytes=held_bytes)


def comparison_s(sample: ComparisonSample, seconds: float, set_up_s: float) -> float | None:
    """Return how long a comparison of everything takes. None: no held record was compared.

    `seconds`: of the sample; `set_up_s`: of a comparison of nothing.
    """
    if sample.is_whole:
        return seconds
    if not sample.sample_bytes:
        return None
    return set_up_s + max(0.0, seconds - set_up_s) * sample.held_bytes / sample.sample_bytes
