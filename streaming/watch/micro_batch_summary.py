"""Driver: reports of a micro-batch (pure): its row in `micro_batches`, its log line, problems, the age of records."""

from __future__ import annotations

from collections.abc import Mapping

from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation, Problem, ProblemKind
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.micro_batches import SLOWEST_SLOT, TOTAL, MicroBatchReport
from shallow_mirror.sinks.slots import REMEDY_OF_DAMAGE
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Measurements
from shallow_mirror.streaming.watch.error_hints import problem_of_retry, problem_of_truncation
from shallow_mirror.types import Segment, SegmentKind, SourcePartition

_RETRY = "Then: shallow-mirror quarantine retry CONF"
_EXPORT = "Its bytes: shallow-mirror quarantine export CONF DIR"


def observation(
    report: MicroBatchReport, segments: list[Segment], *, run_epoch: int, lag_offsets: int | None, settled_at_ms: int
) -> MicroBatchObservation:
    """Return the row of a micro-batch in `micro_batches`."""
    data = [segment for segment in segments if segment.kind is SegmentKind.DATA]
    dropped: dict[str, int] = {}
    for segment in segments:
        if segment.kind is not SegmentKind.DATA and segment.batch_count:
            dropped[segment.kind.value] = dropped.get(segment.kind.value, 0) + segment.batch_count
    return MicroBatchObservation(
        run_epoch=run_epoch,
        micro_batch=report.micro_batch,
        fetched_bytes=report.fetched_bytes,
        size_bytes=sum(segment.size_bytes for segment in data),
        batch_count=sum(segment.batch_count for segment in data),
        rebuilt_batch_count=sum(segment.rebuilt_batch_count for segment in data),
        record_count=sum(segment.record_count for segment in data),
        dropped_batch_counts=dropped,
        duration_ms=report.duration_ms,
        lag_offsets=lag_offsets,
        settled_at_ms=settled_at_ms,
    )


def measurements_of(report: MicroBatchReport, copied: Mapping[str, int]) -> Measurements:
    """Return the measurements for the planner. `copied`: as in `Measurements`."""
    return offset_planning.measure(
        [row.segment for row in report.rows],
        report.duration_ms[TOTAL] / 1000,
        copied,
        slot_seconds=report.duration_ms[SLOWEST_SLOT] / 1000,
        steady=report.steady,
    )


def sentence(observed: MicroBatchObservation) -> str:
    """Return the log line of a micro-batch."""
    seconds = observed.duration_ms[TOTAL] / 1000
    raw = observed.batch_count - observed.rebuilt_batch_count
    dropped = ", ".join(f"{count:,} {kind}" for kind, count in sorted(observed.dropped_batch_counts.items()))
    size = f"{observed.size_bytes / 1e6:.1f} MB" if observed.size_bytes >= 100_000 else f"{observed.size_bytes / 1e3:.1f} kB"
    return (
        f"micro-batch {observed.micro_batch}: {counted(observed.record_count, 'record')}, "
        f"{counted(observed.batch_count, 'batch')} "
        f"({raw:,} raw, {observed.rebuilt_batch_count:,} rebuilt), {size} in {seconds:.2f} s"
        f"{f', dropped {dropped}' if dropped else ''}{offsets_left(observed.lag_offsets)}"
    )


def offsets_left(lag_offsets: int | None) -> str:
    """Return the end of a line about progress; nothing if the ends of the source are unknown."""
    return "" if lag_offsets is None else f"; {counted(lag_offsets, 'offset')} left"


def problems_of(report: MicroBatchReport, segments: list[Segment]) -> list[Problem]:
    """Return the problems of the tasks of a micro-batch."""
    problems = [problem_of_retry(f"slot {slot} started again from its positions", error) for slot, error in report.retried]
    problems += [
        Problem(
            kind=ProblemKind.QUARANTINED,
            text=f"batch at offsets {batch.source_start} to {batch.source_end - 1}: {batch.rule}",
            remedy=f"{batch.remedy}. {_EXPORT if batch.remedy == REMEDY_OF_DAMAGE else _RETRY}",
            error_name=batch.error_name,
            place=batch.source.topic_partition,
        )
        for batch in report.quarantined
    ]
    problems += [
        Problem(
            kind=ProblemKind.EXPIRED,
            text=f"the source deleted offsets {segment.source_start} to {segment.source_end - 1} before they were copied",
            remedy="they cannot be copied any more; a longer retention of the source topic gives the mirror more time",
            place=segment.source.topic_partition,
        )
        for segment in segments
        if segment.kind is SegmentKind.EXPIRED
    ]
    problems += [problem_of_truncation(loss) for loss in report.truncated]
    return problems


def ages_s(segments: list[Segment], visible_at_ms: int) -> list[float]:
    """Return the age of the newest record of each partition that moved; 0 for timestamps in the future."""
    newest: dict[SourcePartition, int] = {}
    for segment in segments:
        if segment.kind is SegmentKind.DATA and segment.max_timestamp_ms is not None and segment.max_timestamp_ms >= 0:
            newest[segment.source] = max(newest.get(segment.source, 0), segment.max_timestamp_ms)
    return [max(0, visible_at_ms - at_ms) / 1000 for at_ms in newest.values()]
