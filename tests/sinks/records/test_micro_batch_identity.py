"""Which micro-batch is written, which was, and which is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shallow_mirror.checkpoints import DecidedSegment, WrittenBy, segment_of
from shallow_mirror.errors import ConfigError, MicroBatchInDoubtError
from shallow_mirror.sinks.records.micro_batch_identity import (
    WRITE,
    WRITTEN,
    MicroBatchId,
    OnDoubt,
    RecordedMicroBatch,
    SlotContent,
    plan_micro_batch,
)
from shallow_mirror.types import SlotTxn, TargetPartition

A = MicroBatchId(query_id="a", batch_id=7, source_offsets="[7]")
NEWEST = RecordedMicroBatch(A, 5, {0: SlotContent(5, 1)}, 5)


def next_of(batch: MicroBatchId, **changes: object) -> MicroBatchId:
    return replace(batch, **{"batch_id": (batch.batch_id or 0) + 1, "source_offsets": "[8]"} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "newest", "same", "follows", "expected"),
    [
        (A, None, None, None, WRITE),
        (next_of(A), NEWEST, None, None, WRITE),
        (next_of(A, batch_id=99), NEWEST, None, None, WRITE),
        (A, NEWEST, NEWEST, None, WRITTEN),
        (replace(A, source_offsets=None), NEWEST, NEWEST, None, WRITTEN),
        (MicroBatchId(query_id="b", batch_id=0), NEWEST, None, "a", WRITE),
        (MicroBatchId(job_id="j"), NEWEST, None, None, WRITE),
        (MicroBatchId(job_id="j"), NEWEST, NEWEST, None, WRITTEN),
    ],
    ids=["the first", "the next", "behind empty ones", "a replay", "offsets unknown", "follows", "a job", "a job again"],
)
def test_a_micro_batch_is_written_or_was(
    batch: MicroBatchId,
    newest: RecordedMicroBatch | None,
    same: RecordedMicroBatch | None,
    follows: str | None,
    expected: object,
) -> None:
    assert plan_micro_batch(batch, newest, same, follows=follows, on_doubt="stop") == expected


OLDER = RecordedMicroBatch(replace(A, batch_id=3, source_offsets="[3]"), 5, {}, 5)


@pytest.mark.parametrize(
    ("batch", "same", "follows"),
    [
        (replace(A, source_offsets="[9]"), NEWEST, None),
        (replace(A, batch_id=6), None, None),
        (replace(A, batch_id=3, source_offsets="[9]"), OLDER, None),
        (replace(A, batch_id=3, source_offsets=None), OLDER, None),
        (MicroBatchId(query_id="b", batch_id=0), None, None),
        (MicroBatchId(query_id="b", batch_id=0), None, "c"),
        (MicroBatchId(query_id="b", batch_id=0), OLDER, "a"),
    ],
    ids=[
        "other offsets",
        "an empty one again",
        "older with other offsets",
        "older, offsets unknown",
        "another query",
        "that follows another",
        "a query that was followed",
    ],
)
def test_a_micro_batch_of_an_older_checkpoint_or_of_another_query_is_refused(
    batch: MicroBatchId, same: RecordedMicroBatch | None, follows: str | None
) -> None:
    with pytest.raises(ConfigError):
        plan_micro_batch(batch, NEWEST, same, follows=follows, on_doubt="stop")


def test_an_older_micro_batch_that_is_the_same_was_written() -> None:
    assert plan_micro_batch(OLDER.id, NEWEST, OLDER, follows=None, on_doubt="stop") == WRITTEN


LOST = RecordedMicroBatch.lost(A)
FOLLOWING = MicroBatchId(query_id="b", batch_id=0)
JOB = MicroBatchId(job_id="2026-11-27")


@pytest.mark.parametrize(
    ("batch", "same", "on_doubt", "expected"),
    [
        (next_of(A), None, "stop", WRITE),
        (A, LOST, "skip", WRITTEN),
        (A, LOST, "repeat", WRITE),
        (FOLLOWING, None, "skip", WRITE),
        (FOLLOWING, None, "repeat", WRITE),
        (JOB, None, "skip", WRITE),
        (JOB, RecordedMicroBatch(JOB, record_count=1, slots={}, found_count=1), "stop", WRITTEN),
    ],
    ids=["the next", "left", "repeated", "follows, the rest is left", "follows, and repeats it", "a job", "a recorded job"],
)
def test_behind_a_micro_batch_that_only_receipts_name(
    batch: MicroBatchId, same: RecordedMicroBatch | None, on_doubt: OnDoubt, expected: object
) -> None:
    assert plan_micro_batch(batch, LOST, same, follows="a", on_doubt=on_doubt) == expected


@pytest.mark.parametrize(
    ("batch", "same"), [(A, LOST), (FOLLOWING, None), (JOB, None)], ids=["a replay", "a query that follows", "a job"]
)
def test_a_micro_batch_that_only_receipts_name_may_be_there_in_part(batch: MicroBatchId, same: RecordedMicroBatch | None) -> None:
    with pytest.raises(MicroBatchInDoubtError, match="batch 7 of query a, which was committed, perhaps in part"):
        plan_micro_batch(batch, LOST, same, follows="a", on_doubt="stop")


IN_PART = RecordedMicroBatch(A, 5, {0: SlotContent(3, 1)}, 3)


def test_another_query_does_not_follow_a_micro_batch_that_was_committed_in_part() -> None:
    with pytest.raises(MicroBatchInDoubtError, match="follows batch 7 of query a, which was committed in part, 3 of 5 records"):
        plan_micro_batch(FOLLOWING, IN_PART, None, follows="a", on_doubt="stop")
    for on_doubt in ("skip", "repeat"):
        assert plan_micro_batch(FOLLOWING, IN_PART, None, follows="a", on_doubt=on_doubt) == WRITE
    assert plan_micro_batch(JOB, IN_PART, None, follows=None, on_doubt="stop") == WRITE


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        (A, A),
        (replace(A, source_offsets="[" * 1001), replace(A, source_offsets=None)),
        (MicroBatchId(job_id="j" * 100), MicroBatchId(job_id="j" * 100)),
    ],
    ids=["a batch", "long offsets", "a job"],
)
def test_a_receipt_names_its_micro_batch(batch: MicroBatchId, named: MicroBatchId) -> None:
    assert MicroBatchId.of_receipt(batch.in_receipt()) == named
    assert batch.is_same(named)
    assert not replace(batch, batch_id=8, job_id=None).is_same(named)


def test_a_long_job_id_is_a_digest_in_a_receipt() -> None:
    job = MicroBatchId(job_id="j" * 101)
    named = MicroBatchId.of_receipt(job.in_receipt())
    assert named is not None
    assert len(named.job_id or "") == 64
    assert job.is_same(named)
    assert not MicroBatchId(job_id="k" * 101).is_same(named)


@pytest.mark.parametrize("named", [{}, {"query": "a"}, {"query": 1, "batch": 2}, {"job": 3}])
def test_a_receipt_of_a_mirror_names_none(named: dict[str, str | int]) -> None:
    assert MicroBatchId.of_receipt(named) is None


def rows(*slots: tuple[int, int, int]) -> list[DecidedSegment]:
    """Return a row for each (slot, records of the slot, records of the row)."""
    return [
        DecidedSegment(
            segment_of(TargetPartition("t", "id", partition), 10, 20, record_count=count),
            SlotTxn(f"s-{slot}", slot, 0),
            written_by=WrittenBy("a", 7, None, "[7]", 9, slot, slot_count, 5),
        )
        for partition, (slot, slot_count, count) in enumerate(slots)
    ]


def test_slots_that_are_whole_are_compared_by_a_replay() -> None:
    recorded = RecordedMicroBatch.of_rows(rows((0, 4, 1), (0, 4, 3)))
    assert recorded is not None
    plan = plan_micro_batch(A, recorded, recorded, follows=None, on_doubt="stop")
    assert (plan.is_written, plan.committed, plan.record_count) == (False, {0: SlotContent(4, 5)}, 9)


def test_a_slot_of_which_partitions_are_missing_needs_the_operator() -> None:
    recorded = RecordedMicroBatch.of_rows(rows((0, 4, 1), (1, 5, 5)))
    with pytest.raises(MicroBatchInDoubtError, match="6 of 9 records"):
        plan_micro_batch(A, recorded, recorded, follows=None, on_doubt="stop")
    assert plan_micro_batch(A, recorded, recorded, follows=None, on_doubt="skip") == WRITTEN
    assert plan_micro_batch(A, recorded, recorded, follows=None, on_doubt="repeat") == WRITE


def test_no_rows_are_no_micro_batch() -> None:
    assert RecordedMicroBatch.of_rows([]) is None
