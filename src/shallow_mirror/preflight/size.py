"""Pure: what a mirror needs for the traffic of its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shallow_mirror.types import TopicPartition

HOURS = 24
"""Traffic of so many hours is looked at."""

HEADROOM = 2.0
"""Twice what the busiest hour needs: a backlog is then copied as fast as it grew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """Topics whose batches are like those of one corpus, with their traffic in the busiest hour."""

    corpus: str
    topics: tuple[str, ...]
    bytes_per_s: float
    batch_bytes: float
    """On average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a mirror of this traffic needs. CPU in cores that are busy all the time."""

    last_hour_bytes_per_s: float
    busiest_hour_bytes_per_s: float
    classes: tuple[TrafficClass, ...]
    unknown_partitions: int
    """Nothing was read of them, so the size of their records is not known: they are left out."""
    busiest_partition: TopicPartition | None
    busiest_partition_bytes_per_s: float
    slot_bytes_per_s: float
    """Of the busiest partition's batches, with one slot."""
    slots: int
    cores: int
    mirror_cpu: float
    """In the busiest hour, without the headroom, as `target_cpu`."""
    target_cpu: float
    """Of all brokers together, with one replica."""
    memory_mb: int
    configured_slots: int
    """`write.slots` of the mirror file."""

    @property
    def is_partition_too_busy(self) -> bool:
        """Return whether one partition has more traffic than its slot copies: a partition is in one slot."""
        return self.busiest_partition_bytes_per_s > self.slot_bytes_per_s

    def document(self) -> dict[str, Any]:
        """Return the size for JSON."""
        partition = None if self.busiest_partition is None else str(self.busiest_partition)
        return {**asdict(self), "busiest_partition": partition, "headroom": HEADROOM, "hours": HOURS}
