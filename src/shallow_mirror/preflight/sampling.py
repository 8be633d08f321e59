"""Driver: the backlog of each topic: where the mirror would begin, and its batches, counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BatchRefused, ConfigError, CorruptBatch, DataLoss
from shallow_mirror.preflight.counts import Amount, RuleCount, TopicCounts
from shallow_mirror.preflight.estimate import PartitionSample
from shallow_mirror.preflight.findings import Finding, Level
from shallow_mirror.preflight.reading import SampleReader
from shallow_mirror.preflight.report import TopicReport
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.preflight.times import time_limits
from shallow_mirror.streaming import planning
from shallow_mirror.streaming.planner import LogEnds, Planner
from shallow_mirror.types import BatchLimits, SourcePartition, TopicPartition
from shallow_mirror.wire.admission import admit


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightProgress:
    """`done_offsets` of `total_offsets` of the backlog; those behind a sample count as done with it."""

    place: TopicPartition
    done_offsets: int
    total_offsets: int
    read_bytes: int
    refused_batch_count: int

    def __str__(self) -> str:
        refused = f"{self.refused_batch_count:,} batches refused" if self.refused_batch_count else "nothing refused"
        return f"{self.place}, {self.read_bytes / 1e6:,.0f} MB read, {refused}"


OnProgress = Callable[[PreflightProgress], None]


def ignore_progress(progress: PreflightProgress) -> None:
    return None


def plan_starts(
    topic: str, planner: Planner, listing: LogEnds, known: Mapping[SourcePartition, int], deadline: Deadline
) -> dict[SourcePartition, int]:
    """Where the mirror begins with each partition that has a leader. `known`: all positions of its map.

    Raises DataLoss, ConfigError, CorruptBatch, BatchRefused where it would stop instead; Retriable.
    """
    ends = {one: end for one, end in listing.ends.items() if one.topic == topic}
    positions = {one: offset for one, offset in known.items() if one.topic == topic}
    planning.require_same_topics(positions, listing.topic_ids)
    planning.require_not_truncated(positions, ends)
    new = [one for one in ends if one not in positions]
    found = planner.starts_of(new, listing, deadline, is_first_run=not known)
    return {one: positions[one] if one in positions else found[one] for one in ends}


class TopicSampler:
    """`backlogs`: [start, end) by partition, of all topics. What stops the reading of a partition is in `findings`."""

    def __init__(
        self,
        config: MirrorConfig,
        reader: SampleReader,
        backlogs: Mapping[SourcePartition, tuple[int, int]],
        on_progress: OnProgress,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._config, self._reader, self._backlogs = config, reader, backlogs
        self._on_progress, self._now_ms = on_progress, now_ms
        self._total_offsets = sum(end - start for start, end in backlogs.values())
        self._done_offsets = self._refused_batch_count = 0
        self.findings: list[Finding] = []

    def sample(self, topic: str, partition_count: int, plan: TargetPlan) -> TopicReport:
        """Raises Retriable."""
        counts, samples = TopicCounts(), dict[TopicPartition, PartitionSample]()
        for one, (start, end) in sorted(self._backlogs.items()):
            if one.topic != topic:
                continue
            before = counts.read.size_bytes
            reached = self._read(one.topic_partition, start, end, plan, counts)
            samples[one.topic_partition] = PartitionSample(
                position=start, end=end, reached=reached, read_bytes=counts.read.size_bytes - before
            )
            self._done_offsets += end - start
            self._tell(one.topic_partition, 0, counts)
        self._refused_batch_count += counts.refused.batch_count
        return TopicReport(topic=topic, partition_count=partition_count, target=plan, samples=samples, counts=counts)

    def _read(self, place: TopicPartition, start: int, end: int, plan: TargetPlan, counts: TopicCounts) -> int:
        """Up to which offset it was read."""
        limits, times, reached = self._batch_limits(plan), time_limits(plan.settings, self._now_ms()), start
        try:
            for part, reached in self._reader.read(place, start, end):
                admission = admit(
                    part.index,
                    part.records,
                    topic_partition=place,
                    position=start,
                    range_end=end,
                    aborted=part.aborted,
                    limits=limits,
                )
                counts.add(place, part.index, admission, limits, times)
                self._tell(place, reached - start, counts)
        except BatchRefused as error:
            counts.refuse(error.rule, RuleCount(error.remedy, place, error.base_offset, 0, Amount(batch_count=1)))
        except (DataLoss, CorruptBatch, ConfigError) as error:
            self.findings.append(Finding(Level.STOPS, f"source topic {place.topic}", str(error)))
        return reached

    def _batch_limits(self, plan: TargetPlan) -> BatchLimits:
        read = self._config.read
        return BatchLimits(
            max_message_bytes=plan.max_message_bytes, isolation_level=read.isolation_level, log_append_time=read.log_append_time
        )

    def _tell(self, place: TopicPartition, offsets: int, counts: TopicCounts) -> None:
        self._on_progress(
            PreflightProgress(
                place=place,
                done_offsets=min(self._done_offsets + offsets, self._total_offsets),
                total_offsets=self._total_offsets,
                read_bytes=self._reader.read_bytes,
                refused_batch_count=self._refused_batch_count + counts.refused.batch_count,
            )
        )
