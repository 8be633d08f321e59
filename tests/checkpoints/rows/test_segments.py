from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.support.record_batches import batch, marker, view

from shallow_mirror.checkpoints.rows.segments import SegmentBuilder, check_coverage
from shallow_mirror.types import (
    BatchLimits,
    IsolationLevel,
    LogAppendTimePolicy,
    Segment,
    SegmentKind,
    SourcePartition,
    TargetPartition,
    TopicPartition,
)
from shallow_mirror.wire.batches import Verdict, admit, index_batches
from shallow_mirror.wire.records import Rewritten
from shallow_mirror.wire.records.send_buffer import SentPart

SOURCE, TARGET = SourcePartition("t", "id", 0), TargetPartition("t", "other", 0)
LIMITS = BatchLimits(
    max_message_bytes=10**6, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
)


def built(
    *batches: bytes, position: int = 0, first_target: int = 100, aborted: tuple[tuple[int, int], ...] = ()
) -> tuple[Segment, ...]:
    records = view(*batches)
    index = index_batches(records)
    admission = admit(
        index, records, topic_partition=TopicPartition("t", 0), position=position, range_end=10**6, aborted=aborted, limits=LIMITS
    )
    offsets, at = [], first_target
    for i in (admission.verdicts == Verdict.RAW).nonzero()[0].tolist():
        offsets.append(at)
        at += int(index.headers["records_count"][i])
    builder = SegmentBuilder(SOURCE, TARGET, position)
    builder.add(index, admission, offsets)
    return builder.build()


def test_a_clean_run_of_batches_is_one_row() -> None:
    (row,) = built(batch(0, 3), batch(3, 2), batch(5, 1))
    assert (row.kind, row.source_start, row.source_end) == (SegmentKind.DATA, 0, 6)
    assert (row.target_start, row.target_end, row.record_count, row.batch_count) == (100, 106, 6, 3)


def test_markers_gaps_and_aborted_data_get_rows_and_shift_what_follows() -> None:
    rows = built(
        batch(0, 2),
        batch(2, 1, attributes=0x10, producer_id=8, producer_epoch=1, base_sequence=0),
        marker(3, 0, 8),
        marker(4, 1, 9),
        batch(7, 2),
        aborted=((8, 2),),
    )
    kinds = [(row.kind.value, row.source_start, row.source_end) for row in rows]
    assert kinds == [("data", 0, 2), ("aborted", 2, 3), ("abort", 3, 4), ("commit", 4, 5), ("gap", 5, 7), ("data", 7, 9)]
    assert (rows[1].source_producer_id, rows[1].record_count, rows[2].coordinator_epoch) == (8, 1, 5)
    assert (rows[0].target_start, rows[-1].target_start) == (100, 102)


def test_what_lies_between_the_position_and_the_first_batch_is_a_gap() -> None:
    rows = built(batch(9, 1), position=4)
    assert [(row.kind.value, row.source_start, row.source_end) for row in rows] == [("gap", 4, 9), ("data", 9, 10)]


def test_a_rebuilt_batch_has_a_row_for_each_run_on_both_sides_and_does_not_merge_with_raw_ones() -> None:
    records = view(batch(0, 2), batch(2, deltas=[0, 1, 2, 4, 5], last_offset_delta=7), batch(10, 1))
    index = index_batches(records)
    topic_partition = TopicPartition("t", 0)
    admission = admit(index, records, topic_partition=topic_partition, position=0, range_end=99, aborted=(), limits=LIMITS)
    builder = SegmentBuilder(SOURCE, TARGET, 0)
    made = Rewritten(np.array([2, 3, 4, 6, 7]), [SentPart(1, 0, 2), SentPart(2, 0, 3)])
    builder.add(index, admission, [100, 102, 110, 113], {1: made})
    rows = builder.build()
    assert [(row.kind.value, row.source_start, row.source_end, row.target_start) for row in rows] == [
        ("data", 0, 2, 100),
        ("data", 2, 4, 102),
        ("data", 4, 5, 110),
        ("gap", 5, 6, None),
        ("data", 6, 8, 111),
        ("gap", 8, 10, None),
        ("data", 10, 11, 113),
    ]
    data = [row for row in rows if row.kind is SegmentKind.DATA]
    assert [(row.record_count, row.batch_count, row.rebuilt_batch_count) for row in data] == [
        (2, 1, 0), (2, 1, 1), (1, 0, 0), (2, 0, 0), (1, 1, 0)
    ]  # fmt: skip
    assert sum(row.size_bytes for row in rows) == len(records)


def test_closing_beyond_the_last_batch_adds_a_gap() -> None:
    builder = SegmentBuilder(SOURCE, TARGET, 5)
    builder.close_at(8)
    assert [(row.kind.value, row.source_start, row.source_end) for row in builder.build()] == [("gap", 5, 8)]


@pytest.mark.slow
@given(
    shape=st.lists(
        st.tuples(st.sampled_from(["data", "empty", "commit", "aborted"]), st.integers(1, 4), st.integers(0, 3)), max_size=20
    )
)
def test_every_offset_is_in_exactly_one_row_and_every_record_is_counted(shape: list[tuple[str, int, int]]) -> None:
    made, offset, records = [], 0, 0
    for kind, count, hole in shape:
        offset += hole
        if kind == "data":
            made.append(batch(offset, count))
            records += count
        elif kind == "empty":
            made.append(batch(offset, deltas=[], last_offset_delta=count - 1))
        elif kind == "commit":
            made.append(marker(offset, 1, 3))
            count = 1
        else:
            made.append(batch(offset, count, attributes=0x10, producer_id=8, producer_epoch=0, base_sequence=0))
        offset += count
    rows = built(*made, aborted=((8, 0),))
    assert check_coverage({SOURCE: 0}, rows)[SOURCE] == (offset if made else 0)
    data = [row for row in rows if row.kind is SegmentKind.DATA]
    assert sum(row.record_count for row in data) == records
    targets = [t for row in data for t in range(row.target_start or 0, row.target_end or 0)]
    assert targets == list(range(100, 100 + records))


def test_batches_in_front_of_an_end_are_recorded_and_nothing_behind_it() -> None:
    """Raw, dropped and rewritten ones. A batch that was sent behind the end would be copied again, so it is an error."""
    records = view(batch(0, 2), marker(2, 1, 9), batch(3, deltas=[0, 2]), batch(9, 2), marker(11, 1, 9), batch(12, 1))
    index = index_batches(records)
    admission = admit(index, records, topic_partition=TopicPartition("t", 0), position=0, range_end=99, aborted=(), limits=LIMITS)
    rewritten = {2: Rewritten(np.array([3, 5]), [SentPart(1, 0, 1), SentPart(2, 0, 1)])}
    sent = {0: 0, 1: 1, 2: 1, 3: 3, 4: 4, 5: 4, 6: 5}
    reached = {0: 0, 1: 2, 2: 3, 3: 6, 4: 11, 5: 12, 6: 13}
    for end, count in sent.items():
        builder = SegmentBuilder(SOURCE, TARGET, 0)
        builder.add(index, admission, [100, 102, 110, 120, 130][:count], rewritten, end=end)
        assert builder.position == reached[end]
        assert check_coverage({SOURCE: 0}, builder.build()) == {SOURCE: reached[end]}
        assert sum(row.record_count for row in builder.build() if row.kind is SegmentKind.DATA) == [0, 2, 2, 4, 6, 6, 7][end]
    builder = SegmentBuilder(SOURCE, TARGET, 0)
    with pytest.raises(ValueError, match="4 target offsets of 3 batches"):
        builder.add(index, admission, [100, 102, 110, 120], rewritten, end=3)


def test_a_hole_and_an_overlap_are_found() -> None:
    first, second = built(batch(0, 2)) + built(batch(3, 2), position=3)
    with pytest.raises(ValueError, match="does not continue at 2"):
        check_coverage({SOURCE: 0}, (first, second))
    with pytest.raises(ValueError, match="does not continue at 2"):
        check_coverage({SOURCE: 0}, (first, first))
