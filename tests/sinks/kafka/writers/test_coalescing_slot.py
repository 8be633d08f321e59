"""A slot that makes one batch of small ones: fewer on the target, and the source's named where the target refuses something."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.changes import error
from tests.sinks.spark_rows import rows_of
from tests.sinks.two_strict_clusters import LIMITS, A, B, Clusters, create_target, planned, route_to, run_kafka_slot
from tests.support.record_batches import batch, record

from shallow_mirror.errors import BatchRefusedError
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.slots import UNLIMITED_QUARANTINE, slot_task
from shallow_mirror.types import PlannedRange, QuarantineLimits, SegmentKind, SourcePartition

ROUTES = {"orders": route_to("young", replace(LIMITS, coalesce_bytes=1 << 14))}
PLANS = (planned(A, 12), planned(B, 4))


def job_of(clusters: Clusters, positions: dict[SourcePartition, int], quarantine: QuarantineLimits | None = None) -> KafkaSlotJob:
    return clusters.job(positions, routes=ROUTES, quarantine=quarantine)


def ran(clusters: Clusters, job: KafkaSlotJob, *ranges: PlannedRange, through_spark: bool = False) -> SlotResult:
    if through_spark:
        return run_kafka_slot(job, iter(rows_of(clusters, *ranges)), is_planned_ranges=False)
    return clusters.run(job, *ranges)


@pytest.fixture
def pair(clusters: Clusters) -> Clusters:
    create_target(clusters.target, "young", 2, **{"message.timestamp.before.max.ms": "3600000"})
    return clusters


def value(source: SourcePartition, offset: int) -> bytes:
    return record(0, value=b"%d of %d" % (offset, source.partition))


def seed(clusters: Clusters, source: SourcePartition, count: int, *, old: int | None = None) -> None:
    """Batches of one record each; the one at `old` is older than the target lets it be."""
    now_ms = clusters.target.now_ms()
    for offset in range(count):
        timestamp = 1_000 if offset == old else now_ms
        raw = batch(offset, 1, payload=value(source, offset), timestamp=timestamp)
        clusters.source.seed((source.topic, source.partition), raw)


def joined(source: SourcePartition, *offsets: int) -> bytes:
    """Return the records section of the batch that these become."""
    return b"".join(record(n, value=b"%d of %d" % (offset, source.partition)) for n, offset in enumerate(offsets))


def test_small_batches_become_one_on_the_target_and_one_row_of_the_map(pair: Clusters) -> None:
    seed(pair, A, 12)
    seed(pair, B, 4)
    result = pair.run(job_of(pair, {A: 0, B: 0}), *PLANS)
    rows = [
        (segment.source, segment.source_start, segment.source_end, segment.target_start, segment.target_end)
        for segment in result.segments
    ]
    assert rows == [(A, 0, 12, 0, 12), (B, 0, 4, 0, 4)]
    assert [(segment.batch_count, segment.rebuilt_batch_count) for segment in result.segments] == [(12, 12), (4, 4)]
    assert pair.committed(result, A, "young") == [joined(A, *range(12))]
    assert pair.committed(result, B, "young") == [joined(B, *range(4))]
    assert pair.target.asked("Produce") == 1


@pytest.mark.slow
@pytest.mark.parametrize("through_spark", [False, True], ids=["direct", "through Spark"])
def test_a_poison_batch_among_those_that_became_one_is_set_aside_alone(
    pair: Clusters, through_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_task, "_input_partition", lambda: 3)
    seed(pair, A, 12, old=5)
    seed(pair, B, 4)
    positions, end = {A: 0, B: 0}, {A: 12, B: 4}
    rows, set_aside = [], []
    while positions != end:
        result = ran(pair, job_of(pair, dict(positions), UNLIMITED_QUARANTINE), *PLANS, through_spark=through_spark)
        copies = {position: pair.committed(result, position, "young") for position in positions}
        set_aside += [
            (segment.source, segment.source_start, segment.source_end, segment.error_name) for segment in result.quarantined
        ]
        rows += [(segment.source, segment.kind, segment.source_start, segment.source_end) for segment in result.segments]
        positions.update({segment.source: segment.source_end for segment in result.segments})
    assert set_aside == [(A, 5, 6, "INVALID_TIMESTAMP")]
    assert (A, SegmentKind.QUARANTINED, 5, 6) in rows
    assert copies[A] == [*(value(A, offset) for offset in range(5)), joined(A, *range(6, 12))]
    assert b"".join(copies[B]).count(b" of 1") == 4


def test_without_a_quarantine_the_error_names_the_batch_and_not_the_one_it_became_part_of(pair: Clusters) -> None:
    seed(pair, A, 12, old=5)
    with pytest.raises(BatchRefusedError, match="INVALID_TIMESTAMP") as refused:
        pair.run(job_of(pair, {A: 0}), planned(A, 12))
    assert (refused.value.topic_partition, refused.value.base_offset) == (A.topic_partition, 5)


def test_a_batch_made_of_several_that_is_refused_although_they_are_not_leaves_them_as_they_are(pair: Clusters) -> None:
    seed(pair, A, 12)
    pair.target.change("Produce", error(10))
    result = pair.run(job_of(pair, {A: 0}), planned(A, 12))
    assert result.is_partial
    (row,) = result.segments
    assert (row.source_start, row.source_end, row.batch_count, row.rebuilt_batch_count) == (0, 12, 12, 0)
    assert pair.committed(result, A, "young") == [value(A, offset) for offset in range(12)]
