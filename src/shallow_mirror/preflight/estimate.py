"""Pure: estimate of the amount to copy and its duration, from measurements alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shallow_mirror.plurals import counted

LEAST_MEASURED_BYTES = 1 << 20
"""Less says nothing about speed: setting up weighs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """[position, end) is the backlog, [position, reached) was read: nothing, or at least the position's own batch."""

    position: int
    end: int
    reached: int
    read_bytes: int

    @property
    def backlog_offsets(self) -> int:
        return self.end - self.position

    @property
    def read_offsets(self) -> int:
        return min(self.reached, self.end) - self.position

    @property
    def is_whole(self) -> bool:
        return self.reached >= self.end

    @property
    def backlog_bytes(self) -> int | None:
        """Read, or extrapolated from the bytes read; None if nothing was read of a backlog."""
        if self.is_whole:
            return self.read_bytes
        return round(self.read_bytes / self.read_offsets * self.backlog_offsets) if self.read_offsets else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """`size_bytes` leaves out `unread_partitions`. `is_exact`: all of it was read."""

    size_bytes: int
    offsets: int
    is_exact: bool
    unread_partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`measured_bytes` in `measured_s`. `basis`: of the measurement. `is_bound`: a mirror cannot be faster."""

    basis: str
    is_bound: bool
    measured_bytes: int
    measured_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.measured_bytes / self.measured_s

    def seconds_for(self, size_bytes: int) -> float:
        return size_bytes / self.bytes_per_s


def backlog_of(samples: Sequence[PartitionSample], *, unknown_partitions: int = 0) -> Backlog:
    """`unknown_partitions`: those that have no sample."""
    sizes = [sample.backlog_bytes for sample in samples]
    return Backlog(
        size_bytes=sum(size for size in sizes if size is not None),
        offsets=sum(sample.backlog_offsets for sample in samples),
        is_exact=all(sample.is_whole for sample in samples) and not unknown_partitions,
        unread_partitions=sizes.count(None) + unknown_partitions,
    )


def reading_pace(read_bytes: int, seconds: float) -> Pace | None:
    """None if too little was read to tell."""
    if read_bytes < LEAST_MEASURED_BYTES or seconds <= 0:
        return None
    return Pace(basis="reading alone, in this preflight", is_bound=True, measured_bytes=read_bytes, measured_s=seconds)


def mirror_pace(rows: Iterable[Mapping[str, Any]]) -> Pace | None:
    """Of rows of `micro_batches`, of those that were large enough to tell. None if there is none."""
    measured = [(row["fetched_bytes"], json.loads(row["duration_ms"]).get("Total", 0.0) / 1000) for row in rows]
    measured = [(size, seconds) for size, seconds in measured if size >= LEAST_MEASURED_BYTES and seconds > 0]
    if not measured:
        return None
    return Pace(
        basis=f"this mirror's last {counted(len(measured), 'micro-batch')} of at least {LEAST_MEASURED_BYTES >> 20} MiB",
        is_bound=False,
        measured_bytes=sum(size for size, _ in measured),
        measured_s=sum(seconds for _, seconds in measured),
    )
