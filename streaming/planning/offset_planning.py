"""Pure: end offsets -> how far a micro-batch goes, which ranges that makes, and which slot takes which.

Stream offsets are `{"version": 1, "topics": {name: {"id": ..., "partitions": {"0": 123}}}}`; here they are mappings from
SourcePartition to the next offset to plan. Equal mappings build equal documents (names and partitions sorted), because
Spark compares the text.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.errors import ConfigError, LogTruncatedError, TopicRecreatedError
from shallow_mirror.sinks import SteadyCopying
from shallow_mirror.types import UNKNOWN_BYTES_PER_OFFSET, PlannedRange, Segment, SegmentKind, SourcePartition

Offsets = Mapping[SourcePartition, int]

STREAM_OFFSET_VERSION = 1
FIRST_MICRO_BATCH_BYTES = 64 << 20
"""Size of a plan before any rate has been measured."""
MIN_MEASURED_BYTES = 1 << 20
"""The duration of a micro-batch is a measurement of the rate from this size on."""
MIN_MEASURED_SLOT_S = 5.0
"""Or from this duration of its slowest slot on, however little it read."""
MIN_PLAN_BYTES = 64 << 10
"""A plan is not smaller, however slow the path: the commit interval ends slots anyway."""
TIMEOUT_SHARE = 0.25
"""The largest part of the timeout of a round that a plan may need at the measured rate."""
INTERVAL_SHARE = 0.75
"""A little less than the commit interval: a slot that takes somewhat longer than was planned needs no second round."""
_IMBALANCE = 1.25
"""A partition keeps its slot unless that loads the slot with more than this multiple of an equal share."""

_name_and_id = operator.itemgetter(0, 1)
"""Of a partition's topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measurements of a micro-batch. `bytes_per_s` is None when it read too little to tell.

    `copied`: bytes since the run began, by topic if its rate is limited, and of the whole mirror.
    """

    bytes_per_offset: Mapping[SourcePartition, float]
    bytes_per_s: float | None
    bytes_per_batch: float | None = None
    copied: Mapping[str, int] = field(default_factory=dict)


def parse_stream_offset(document: Any) -> dict[SourcePartition, int]:
    """Return next offsets by partition. Raises ValueError on anything that `build_stream_offset` does not build."""
    if not isinstance(document, Mapping) or document.get("version") != STREAM_OFFSET_VERSION:
        version = document.get("version") if isinstance(document, Mapping) else document
        raise ValueError(f"not a stream offset of version {STREAM_OFFSET_VERSION}: {version!r}")
    topics = document.get("topics")
    if not isinstance(topics, Mapping):
        raise ValueError("stream offset without topics")
    offsets: dict[SourcePartition, int] = {}
    for name, topic in topics.items():
        if not isinstance(topic, Mapping) or not isinstance(topic.get("partitions"), Mapping):
            raise ValueError(f"stream offset: topic {name!r} has no partitions")
        topic_id = topic.get("id")
        if not isinstance(topic_id, str):
            raise ValueError(f"stream offset: topic {name!r} has no id")
        for partition, offset in topic["partitions"].items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0 or not str(partition).isdecimal():
                raise ValueError(f"stream offset: {name}-{partition} has the offset {offset!r}")
            offsets[SourcePartition(name, topic_id, int(partition))] = offset
    return offsets


def build_stream_offset(offsets: Offsets) -> dict[str, Any]:
    """Return the document of `offsets`, equal for equal mappings. Raises ValueError if a topic has two ids."""
    topics: dict[str, Any] = {}
    for source, offset in sorted(offsets.items()):
        topic = topics.setdefault(source.topic, {"id": source.topic_id, "partitions": {}})
        if topic["id"] != source.topic_id:
            raise ValueError(f"topic {source.topic} has two ids in one stream offset: {topic['id']} and {source.topic_id}")
        topic["partitions"][str(source.partition)] = offset
    return {"version": STREAM_OFFSET_VERSION, "topics": topics}


def require_same_topics(offsets: Offsets, topic_ids: Mapping[str, str]) -> None:
    """Raise DataLossError when a topic was recreated: its offsets mean other records now."""
    for error in recreation_errors(offsets, topic_ids):
        raise error


def recreation_errors(offsets: Offsets, topic_ids: Mapping[str, str]) -> list[TopicRecreatedError]:
    """Return an error for each partition of a topic that was recreated since."""
    recreated = _recreated_topics(offsets, topic_ids)
    return [
        TopicRecreatedError(source.topic_partition, offset, source.topic_id, topic_ids[source.topic])
        for source, offset in (sorted(offsets.items()) if recreated else ())
        if _name_and_id(source) in recreated
    ]


def without_recreated_topics(offsets: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
    """Return `offsets` without partitions of topics that were recreated since; itself if there are none."""
    recreated = _recreated_topics(offsets, topic_ids)
    if not recreated:
        return offsets
    return {source: offset for source, offset in offsets.items() if _name_and_id(source) not in recreated}


def recreated_topics(sources: Iterable[SourcePartition], topic_ids: Mapping[str, str]) -> dict[str, str]:
    """Return topics that have another id now than any of these partitions: a former id by name."""
    former: dict[str, set[str]] = {}
    for name, topic_id in set(map(_name_and_id, sources)):
        former.setdefault(name, set()).add(topic_id)
    return {name: max(ids) for name, ids in sorted(former.items()) if name in topic_ids and topic_ids[name] not in ids}


def _recreated_topics(offsets: Offsets, topic_ids: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return names of recreated topics with their former ids."""
    names_and_ids = set(map(_name_and_id, offsets))
    return {(name, former_id) for name, former_id in names_and_ids if topic_ids.get(name, former_id) != former_id}


def changed_offsets(start: Offsets, ends: Offsets) -> dict[SourcePartition, int]:
    """Return the ends that differ from the start, of partitions in both mappings. Costs the size of the smaller one."""
    if len(start) < len(ends):
        return {source: ends[source] for source, offset in start.items() if ends.get(source, offset) != offset}
    return {source: end for source, end in ends.items() if start.get(source, end) != end}


def require_topics(required: Iterable[str], existing: Container[str]) -> None:
    """Raise ConfigError with each required topic that does not exist."""
    missing = sorted({name for name in required if name not in existing})
    if missing:
        raise ConfigError(
            [
                f"subscribe: there is no topic {name}, or none that may be read (internal, or no permission to describe it)"
                for name in missing
            ]
        )


def truncation_errors(start: Offsets, ends: Offsets) -> dict[SourcePartition, LogTruncatedError]:
    """Return an error for each log that ends below its planned offset: truncated, or another cluster's."""
    return {
        source: LogTruncatedError(
            source.topic_partition,
            start[source],
            f"the log ends at {end}, below the position: it was truncated (an unclean leader election, a lost disk)",
            log_end=end,
            divergent_offset=end,
            topic_id=source.topic_id,
        )
        for source, end in sorted(changed_offsets(start, ends).items())
        if end < start[source]
    }


def require_not_truncated(start: Offsets, ends: Offsets) -> None:
    """Raise LogTruncatedError when a log ends below its planned offset."""
    for error in truncation_errors(start, ends).values():
        raise error


def plan_budget_bytes(
    ceiling_bytes: int, bytes_per_s: float | None, round_timeout_ms: int | None, commit_interval_ms: float | None = None
) -> int:
    """Return how many bytes a micro-batch may read.

    The first one is small. Later ones need at most a quarter of the timeout, and less than the commit interval, after which
    slots end their transactions. Without a timeout only the ceiling counts.
    """
    if round_timeout_ms is None:
        return ceiling_bytes
    if bytes_per_s is None:
        return min(ceiling_bytes, FIRST_MICRO_BATCH_BYTES)
    planned_ms = round_timeout_ms * TIMEOUT_SHARE
    if commit_interval_ms is not None:
        planned_ms = min(planned_ms, commit_interval_ms * INTERVAL_SHARE)
    return max(1, min(ceiling_bytes, max(int(bytes_per_s * planned_ms / 1000), MIN_PLAN_BYTES)))


def plan_ends(
    start: Offsets, ends: Offsets, bytes_per_offset: Mapping[SourcePartition, float], budget: float
) -> dict[SourcePartition, int]:
    """Return how far each partition of `start` goes within `budget` bytes, never beyond `ends`, never back.

    Small backlogs are served whole, the rest is shared equally among the others; every backlog moves by one offset
    at least. Partitions that are not in `ends` stay.
    """
    backlog = estimate_bytes(start, ends, bytes_per_offset)
    share = _fair_share(sorted(backlog.values()), float(budget))
    planned = dict(start)
    for source, size in backlog.items():
        if size <= share:
            planned[source] = ends[source]
        else:
            offsets = int(share / bytes_per_offset.get(source, UNKNOWN_BYTES_PER_OFFSET))
            planned[source] = min(ends[source], start[source] + max(1, offsets))
    return planned


def estimate_bytes(
    start: Offsets, ends: Offsets, bytes_per_offset: Mapping[SourcePartition, float]
) -> dict[SourcePartition, float]:
    """Return the estimated bytes from `start` to `ends` of each partition that moves forward."""
    return {
        source: (end - start[source]) * bytes_per_offset.get(source, UNKNOWN_BYTES_PER_OFFSET)
        for source, end in changed_offsets(start, ends).items()
        if end > start[source]
    }


def _fair_share(ascending: Sequence[float], budget: float) -> float:
    """Return the most bytes of one backlog under max-min fairness; infinite when all backlogs fit into `budget`."""
    for index, size in enumerate(ascending):
        share = budget / (len(ascending) - index)
        if size > share:
            return share
        budget -= size
    return math.inf


def plan_slot_count(
    slots: int,
    parallelism: int,
    active: int,
    planned_bytes: float,
    slot_bytes: int,
    bytes_per_batch: float | None,
    request_bytes: int,
) -> int:
    """Return how many slots to use: each should fill a transaction with `slot_bytes` and its requests with `request_bytes`.

    A request holds one batch of each partition of its slot. Small batches need many partitions in one slot, because otherwise
    requests cost task and target more than the bytes in them.
    """
    full = slots if bytes_per_batch is None else min(slots, active * bytes_per_batch / request_bytes)
    return max(1, min(slots, parallelism, active, math.ceil(planned_bytes / slot_bytes), int(full)))


def plan_slots(
    planned_bytes: Mapping[SourcePartition, float], used: int, last: Mapping[SourcePartition, int]
) -> dict[SourcePartition, int]:
    """Give every active partition to exactly one of `used` slots, largest first.

    Invariant B: a topic-partition is in one slot of a micro-batch and its range is not cut.
    `last` is the slot each had before; it keeps it unless that would load the slot above 1.25 shares.
    """
    loads = [0.0] * used
    share = sum(planned_bytes.values()) / used * _IMBALANCE
    slots: dict[SourcePartition, int] = {}
    for source, size in sorted(planned_bytes.items(), key=lambda item: (-item[1], item[0])):
        slot = last.get(source, used)
        if slot >= used or loads[slot] + size > share:
            slot = min(range(used), key=lambda candidate: (loads[candidate], candidate))
        loads[slot] += size
        slots[source] = slot
    return slots


def plan_ranges(
    start: Offsets,
    end: Offsets,
    *,
    bytes_per_offset: Mapping[SourcePartition, float],
    slots: int,
    slot_bytes: int,
    parallelism: int,
    last: Mapping[SourcePartition, int],
    bytes_per_batch: float | None = None,
    request_bytes: int = 1,
) -> tuple[PlannedRange, ...]:
    """Return one range per partition that moves, ordered by slot. A partition that is not in `start` has no range yet."""
    moving = estimate_bytes(start, end, bytes_per_offset)
    if not moving:
        return ()
    used = plan_slot_count(slots, parallelism, len(moving), sum(moving.values()), slot_bytes, bytes_per_batch, request_bytes)
    slot_of = plan_slots(moving, used, last)
    return tuple(
        PlannedRange(
            slot=slot,
            source=source,
            start=start[source],
            end=end[source],
            bytes_per_offset=bytes_per_offset.get(source, UNKNOWN_BYTES_PER_OFFSET),
        )
        for source, slot in sorted(slot_of.items(), key=lambda item: (item[1], item[0]))
    )


def measure(
    segments: Sequence[Segment],
    seconds: float,
    copied: Mapping[str, int],
    *,
    slot_seconds: float = 0.0,
    steady: SteadyCopying | None = None,
) -> Measurements:
    """Return measurements for the next micro-batch: bytes per source offset, and bytes per second.

    `seconds`: of all its steps. `slot_seconds`: of its slowest slot, the path between the clusters alone. If little was read
    the other steps take most of the time, and only a slot that took long for it shows that the path is slow. `steady`: if it
    is large enough, it alone counts: a first micro-batch takes most of its time to connect, the longer the farther the
    clusters.
    """
    sizes: dict[SourcePartition, int] = {}
    offsets: dict[SourcePartition, int] = {}
    for segment in segments:
        if segment.kind is SegmentKind.EXPIRED:
            continue
        sizes[segment.source] = sizes.get(segment.source, 0) + segment.size_bytes
        offsets[segment.source] = offsets.get(segment.source, 0) + segment.source_end - segment.source_start
    total, batches = sum(sizes.values()), sum(segment.batch_count for segment in segments)
    return Measurements(
        bytes_per_offset={source: size / offsets[source] for source, size in sizes.items() if size > 0 and offsets[source] > 0},
        bytes_per_s=_bytes_per_s(total, seconds, slot_seconds, steady),
        bytes_per_batch=total / batches if batches else None,
        copied=copied,
    )


def _bytes_per_s(total: int, seconds: float, slot_seconds: float, steady: SteadyCopying | None) -> float | None:
    if steady is not None and steady.size_bytes >= MIN_MEASURED_BYTES and steady.seconds > 0:
        return steady.size_bytes / steady.seconds
    if total >= MIN_MEASURED_BYTES and seconds > 0:
        return total / seconds
    return total / slot_seconds if total > 0 and slot_seconds >= MIN_MEASURED_SLOT_S else None
