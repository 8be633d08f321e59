"""Driver, for the cli: partitions whose retention at the source deletes records before they are archived, as an estimate.

Brokers delete whole segments, in intervals, and never the one that is written: records go at the estimated time or later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.plurals import counted
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, SourcePartition

NEAR = 0.75
"""Share of a retention behind which records that are not archived are named."""
_KEYS = ("cleanup.policy", "retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindPartition:
    """A partition that is not archived up to its last stable offset `end`. `bytes_per_offset`: of its archived data; or None."""

    source: SourcePartition
    position: int
    end: int
    bytes_per_offset: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRetention:
    """The retention of a partition's log at the source. `first_young`: the first offset whose record, by its timestamp, is
    younger than NEAR of `retention_ms`; None if none is. A limit that is None does not apply."""

    log_start: int
    retention_ms: int | None = None
    retention_bytes: int | None = None
    first_young: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionThreat:
    """`is_lost`: the records are deleted already. `basis`: of the estimate in the sentence."""

    topic: str
    partition: int
    is_lost: bool
    detail: str
    basis: str

    def sentence(self) -> str:
        return f"{self.topic}-{self.partition}: {self.detail} (basis: {self.basis})"


def retention_threats(
    cluster: Cluster, behind: Iterable[BehindPartition], now_ms: int, deadline: Deadline
) -> tuple[RetentionThreat, ...]:
    """Ask the source about the logs of partitions that are behind. Raises RetriableError, ConfigError."""
    by_name = {partition.source.topic_partition: partition for partition in behind}
    if not by_name:
        return ()
    configs = cluster.topic_configs(sorted({name.topic for name in by_name}), deadline, keys=_KEYS)
    limits = {topic: _limits(settings) for topic, settings in configs.items()}
    of_time = {
        name: now_ms - int(NEAR * limit_ms) for name in by_name if (limit_ms := limits[name.topic]["retention_ms"]) is not None
    }
    isolation = IsolationLevel.READ_UNCOMMITTED
    starts = cluster.list_offsets(dict.fromkeys(by_name, EARLIEST_TIMESTAMP), isolation, deadline)
    young = cluster.list_offsets(of_time, isolation, deadline) if of_time else {}
    threats = []
    for name, partition in sorted(by_name.items()):
        first_young = young[name].offset if name in young and young[name].offset >= 0 else None
        retention = SourceRetention(log_start=starts[name].offset, first_young=first_young, **limits[name.topic])
        threats += threats_of(partition, retention)
    return tuple(threats)


def threats_of(partition: BehindPartition, retention: SourceRetention) -> list[RetentionThreat]:
    """Pure: return the threats to a partition, and losses that have happened."""

    def threat(detail: str, basis: str, *, is_lost: bool = False) -> RetentionThreat:
        topic, number = partition.source.topic_partition
        return RetentionThreat(topic=topic, partition=number, is_lost=is_lost, detail=detail, basis=basis)

    threats: list[RetentionThreat] = []
    position = partition.position
    if position < retention.log_start:
        lost = f"offsets {position} to {retention.log_start - 1} were deleted at the source before they were archived"
        threats.append(threat(lost, "log start of the source", is_lost=True))
        position = retention.log_start
    old_end = partition.end if retention.first_young is None else min(retention.first_young, partition.end)
    if retention.retention_ms is not None and position < old_end:
        left = _duration(int((1 - NEAR) * retention.retention_ms))
        threats.append(
            threat(
                f"offsets {position} to {old_end - 1} are not archived, and older than {NEAR:.0%} of retention.ms "
                f"({_duration(retention.retention_ms)}): the source may delete them within {left}",
                "timestamps of the source's records",
            )
        )
    if retention.retention_bytes is not None and partition.bytes_per_offset is not None and position < partition.end:
        waiting_bytes = int((partition.end - position) * partition.bytes_per_offset)
        if waiting_bytes > NEAR * retention.retention_bytes:
            threats.append(
                threat(
                    f"about {counted(waiting_bytes, 'byte')} from offset {position} on are not archived, of retention.bytes "
                    f"({retention.retention_bytes:,}): the source deletes the oldest of them when as much has been written",
                    f"{partition.bytes_per_offset:,.0f} bytes per offset, as archived on average",
                )
            )
    return threats


def _limits(settings: Mapping[str, str]) -> dict[str, int | None]:
    """Return the limits by which a topic is deleted; those of a topic that is only compacted do not apply."""
    is_deleted = "delete" in settings.get("cleanup.policy", "delete")
    values = {name: int(settings.get(f"retention.{name}", -1)) if is_deleted else -1 for name in ("ms", "bytes")}
    return {f"retention_{name}": None if value < 0 else value for name, value in values.items()}


def _duration(ms: int) -> str:
    for unit, unit_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if ms >= 2 * unit_ms:
            return counted(round(ms / unit_ms), unit)
    return counted(round(ms / 1000), "second")
