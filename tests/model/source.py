"""What is mirrored, how Spark cuts it into micro-batches, and what its checkpoint remembers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from shallow_mirror.types import PlannedRange, SourcePartition, TargetPartition, TopicPartition

TOPIC = "t"
MAP_ID = "the only offset map"


class Quiet(enum.Enum):
    """Nothing new for a while: the mirror is idle, more will come."""

    QUIET = "quiet"


QUIET = Quiet.QUIET


def source_partition(partition: int) -> SourcePartition:
    return SourcePartition(TOPIC, "source-id", partition)


def target_partition(partition: int) -> TargetPartition:
    return TargetPartition(TOPIC, "target-id", partition)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A small mirror and the habits of its environment.

    `logs`: per source partition one letter an offset: a record (`r`), a transaction marker (`m`), or a record that the target
    refuses until the operator has found a remedy (`p`). `retries`: every second run is one of `quarantine retry`. `plan_sizes` and
    `layouts` (which slot has which partition) are taken in turn by the runs, so that a restart cuts and spreads otherwise.
    `has_zombies`: processes overlap, and tasks outlive them. `has_operator`: while no process runs, transactions may be aborted
    in one partition. `loses_leaders`: target partitions have no leader for a while. `is_far`: the target is, so that the driver
    adds partitions for the tasks; `verifies`: its brokers ask the coordinator of a transaction before its first write to a
    partition, as Kafka 3.6 and later.
    """

    logs: tuple[str, ...] = ("rmr", "rr")
    plan_sizes: tuple[int, ...] = (2, 1, 3)
    layouts: tuple[tuple[int, ...], ...] = ((0, 1),)
    quiet_after: int | None = None
    stops_early: bool = False
    is_spark_writer: bool = False
    keeps_receipts: bool = True
    keeps_logs: bool = True
    compacts: bool = False
    forgets_aborts: bool = False
    forgets_commits: bool = False
    has_zombies: bool = True
    has_operator: bool = False
    loses_leaders: bool = False
    retries: bool = False
    is_far: bool = False
    verifies: bool = True

    @cached_property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition(TOPIC, partition) for partition in range(len(self.logs)))

    def layout(self, run: int) -> tuple[int, ...]:
        return self.layouts[run % len(self.layouts)]

    def slots(self, run: int) -> int:
        return max(self.layout(run)) + 1

    @cached_property
    def records(self) -> tuple[list[int], ...]:
        """Per partition the offsets of its records."""
        return tuple([offset for offset, kind in enumerate(log) if kind == "r"] for log in self.logs)

    @cached_property
    def poison(self) -> tuple[list[int], ...]:
        """Per partition the offsets of records that are quarantined."""
        return tuple([offset for offset, kind in enumerate(log) if kind == "p"] for log in self.logs)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(repr(self))


class MicroBatch(NamedTuple):
    batch_id: int
    ranges: tuple[PlannedRange, ...]


class SparkCheckpoint(NamedTuple):
    """Planned end offsets of the newest micro-batch and of the one before it; the newest batch that was committed."""

    planned_id: int = -1
    ends: tuple[int, ...] | None = None
    starts: tuple[int, ...] = ()
    committed_id: int = -1
    was_quiet: bool = False


def plan(
    checkpoint: SparkCheckpoint, scenario: Scenario, run: int, positions: Mapping[SourcePartition, int]
) -> tuple[SparkCheckpoint, MicroBatch | Quiet | None]:
    """Step 1: the micro-batch that was not committed once more, or the next."""
    if checkpoint.planned_id > checkpoint.committed_id and checkpoint.ends is not None:
        return checkpoint, _micro_batch(checkpoint, scenario, run)
    reached = tuple(positions[source_partition(partition)] for partition in range(len(scenario.logs)))
    starts = reached if checkpoint.ends is None else checkpoint.ends
    if scenario.loses_leaders:  # what was left out is planned again from its position
        starts = tuple(min(start, position) for start, position in zip(starts, reached, strict=True))
    size = scenario.plan_sizes[run % len(scenario.plan_sizes)]
    ends = tuple(min(start + size, len(log)) for start, log in zip(starts, scenario.logs, strict=True))
    if checkpoint.committed_id == scenario.quiet_after and not checkpoint.was_quiet:
        return checkpoint._replace(was_quiet=True), QUIET
    if ends == starts:
        return checkpoint, None
    planned = checkpoint._replace(planned_id=checkpoint.planned_id + 1, ends=ends, starts=starts)
    return planned, _micro_batch(planned, scenario, run)


def _micro_batch(checkpoint: SparkCheckpoint, scenario: Scenario, run: int) -> MicroBatch:
    assert checkpoint.ends is not None
    spans = zip(scenario.layout(run), checkpoint.starts, checkpoint.ends, strict=True)
    return MicroBatch(
        checkpoint.planned_id,
        tuple(
            PlannedRange(slot=slot, source=source_partition(at), start=start, end=end, bytes_per_offset=1.0)
            for at, (slot, start, end) in enumerate(spans)
            if start < end
        ),
    )
