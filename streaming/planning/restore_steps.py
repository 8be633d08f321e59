"""Driver: one micro-batch of a restore: rows of an archive, and the ranges of the slots that copy them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.config.restore_config import RestoreConfig
from shallow_mirror.errors import MirrorError
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.types import PlannedRange, SourcePartition


@dataclass(frozen=True, slots=True)
class RestoreStep:
    """One micro-batch of a restore: rows of consecutive decisions, by partition and in the order of offsets."""

    rows: Mapping[SourcePartition, Sequence[ArchiveRow]]
    last_decision: int


def require_adjacent_rows(step: RestoreStep, positions: Mapping[SourcePartition, int]) -> None:
    """Raise MirrorError if rows behind a position are gone: their records would count as offsets without records."""
    for source, rows in sorted(step.rows.items()):
        gone = gone_offsets(rows, positions[source])
        if gone is not None:
            raise MirrorError(gone_problem(source, *gone))


def gone_offsets(rows: Sequence[ArchiveRow], position: int) -> tuple[int, int] | None:
    """Return the first offsets behind a position that no row has, though a later one is there; None if there are none."""
    end = position
    for row in rows:
        if row.segment.source_start > end:
            return end, row.segment.source_start
        end = max(end, row.segment.source_end)
    return None


def require_named_objects(step: RestoreStep, named: Collection[str]) -> None:
    """Raise MirrorError if visible rows do not name an object of the step any more. `named`: by those of its decisions."""
    for source, rows in sorted(step.rows.items()):
        for row in rows:
            if row.stored is not None and row.stored.object_name not in named:
                raise MirrorError(gone_problem(source, row.segment.source_start, row.segment.source_end))


def gone_problem(source: SourcePartition, start: int, end: int) -> str:
    """Return the problem of a restore that has begun and whose rows of these offsets are gone."""
    return (
        f"{source.topic_partition}: the archive no longer has offsets {start} to {end - 1}: its retention deleted them since the "
        "restore began. Give another `restore` name and other `tables`, and restore into another topic what the archive still has"
    )


def plan_step(
    step: RestoreStep,
    starts: Mapping[SourcePartition, int],
    ends: Mapping[SourcePartition, int],
    config: RestoreConfig,
    parallelism: int,
) -> tuple[PlannedRange, ...]:
    """Return the ranges of a step that are not copied yet, largest slots first."""
    sizes = {source: sum(row.segment.size_bytes for row in rows) for source, rows in step.rows.items()}
    batches = sum(row.segment.batch_count for rows in step.rows.values() for row in rows)
    offsets = {
        source: max(1, sum(row.segment.source_end - row.segment.source_start for row in rows))
        for source, rows in step.rows.items()
    }
    return offset_planning.plan_ranges(
        starts,
        ends,
        bytes_per_offset={source: max(1.0, sizes[source] / offsets[source]) for source in step.rows},
        slots=config.write.slots,
        slot_bytes=config.write.slot_bytes,
        parallelism=parallelism,
        last={},
        bytes_per_batch=sum(sizes.values()) / batches if batches else None,
        request_bytes=config.write.request_bytes,
    )
