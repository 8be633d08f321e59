"""Driver: cores, slots and memory for the traffic of a source: its rate and batches as measured, CPU by published figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from shallow_mirror.preflight.estimate import Pace
from shallow_mirror.preflight.published_figures import (
    LEAST_MEMORY_MB,
    MICRO_BATCH_CPU_S,
    PARTITION_CPU_S,
    SLOT_MEMORY_MB,
    PublishedFigures,
    figures_for,
)
from shallow_mirror.preflight.report import TopicReport
from shallow_mirror.preflight.size import HEADROOM, Size, TrafficClass
from shallow_mirror.types import TopicPartition

_HOUR_S = 3_600.0


def size_for(
    topics: Sequence[TopicReport],
    hourly: Sequence[Mapping[TopicPartition, int]],
    *,
    trigger_s: float,
    reading: Pace | None,
    configured_slots: int,
) -> Size | None:
    """Return the size; None if nothing was read.

    `hourly`: log ends, as of now and before each further hour. `reading`: that of this preflight; no slot reads faster.
    """
    per_offset = _bytes_per_offset(topics)
    if not per_offset:
        return None
    hours = [_rates(newer, older, per_offset) for newer, older in pairwise(hourly)]
    busiest = max(hours, key=lambda rates: sum(rates.values()), default={})
    figures = {topic.topic: _figures(topic) for topic in topics if topic.counts.data.batch_count}
    of_topic: dict[str, float] = defaultdict(float)
    for partition, rate in busiest.items():
        of_topic[partition.topic] += rate
    known = {topic: rate for topic, rate in of_topic.items() if topic in figures}
    limit = math.inf if reading is None else reading.bytes_per_s
    slots_needed = sum(rate / min(figures[topic].slot_mb_per_s * 1e6, limit) for topic, rate in known.items())
    active = sum(rate > 0 for rate in busiest.values())
    slots = max(1, min(active, math.ceil(HEADROOM * slots_needed)))
    fixed = (MICRO_BATCH_CPU_S + PARTITION_CPU_S * active) / max(trigger_s, MICRO_BATCH_CPU_S) if active else 0.0
    copying = sum(rate / 1e9 * figures[topic].mirror_cpu_s_per_gb for topic, rate in known.items())
    heaviest = max(busiest, key=lambda name: busiest[name], default=None)
    slot_of = None if heaviest is None else figures.get(heaviest.topic)
    return Size(
        last_hour_bytes_per_s=sum(hours[0].values()) if hours else 0.0,
        busiest_hour_bytes_per_s=sum(busiest.values()),
        classes=tuple(_classes(topics, known, figures)),
        unknown_partitions=sum(name not in per_offset for name in (hourly[0] if hourly else ())),
        busiest_partition=heaviest,
        busiest_partition_bytes_per_s=0.0 if heaviest is None else busiest[heaviest],
        slot_bytes_per_s=min(limit, math.inf if slot_of is None else slot_of.slot_mb_per_s * 1e6),
        slots=slots,
        # The number of micro-batches does not grow with the traffic.
        cores=max(slots, math.ceil(fixed + HEADROOM * copying)),
        mirror_cpu=fixed + copying,
        target_cpu=sum(rate / 1e9 * figures[topic].target_cpu_s_per_gb for topic, rate in known.items()),
        memory_mb=LEAST_MEMORY_MB + SLOT_MEMORY_MB * max(0, slots - 2),
        configured_slots=configured_slots,
    )


def _bytes_per_offset(topics: Iterable[TopicReport]) -> dict[TopicPartition, float]:
    """Return the bytes of an offset by partition: of its sample, or of its topic's if nothing of the partition was read."""
    found: dict[TopicPartition, float] = {}
    for topic in topics:
        read = [sample for sample in topic.samples.values() if sample.read_offsets]
        if not read:
            continue
        mean = sum(sample.read_bytes for sample in read) / sum(sample.read_offsets for sample in read)
        for partition, sample in topic.samples.items():
            found[partition] = sample.read_bytes / sample.read_offsets if sample.read_offsets else mean
    return found


def _rates(
    newer: Mapping[TopicPartition, int], older: Mapping[TopicPartition, int], per_offset: Mapping[TopicPartition, float]
) -> dict[TopicPartition, float]:
    """Return bytes per second of the hour between two listings."""
    return {
        partition: max(0, newer[partition] - older.get(partition, newer[partition])) * size / _HOUR_S
        for partition, size in per_offset.items()
        if partition in newer
    }


def _figures(topic: TopicReport) -> PublishedFigures:
    counts = topic.counts
    codec = max(counts.codecs, key=lambda name: counts.codecs[name].size_bytes, default="none")
    return figures_for(counts.data.size_bytes / counts.data.batch_count, codec)


def _classes(
    topics: Sequence[TopicReport], rates: Mapping[str, float], figures: Mapping[str, PublishedFigures]
) -> Iterable[TrafficClass]:
    by_corpus: dict[str, list[TopicReport]] = defaultdict(list)
    for topic in topics:
        if topic.topic in figures:
            by_corpus[figures[topic.topic].corpus].append(topic)
    for corpus, members in by_corpus.items():
        data = [topic.counts.data for topic in members]
        yield TrafficClass(
            corpus=corpus,
            topics=tuple(topic.topic for topic in members),
            bytes_per_s=sum(rates.get(topic.topic, 0.0) for topic in members),
            batch_bytes=sum(amount.size_bytes for amount in data) / sum(amount.batch_count for amount in data),
        )
