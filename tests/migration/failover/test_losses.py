"""Counts of records that a group repeats and lacks at most, from rows of the offset map."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome
from shallow_mirror.migration.failover.losses import CopiedCounter, count_rows, losses_of, to_count
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition, TopicPartition

ORDERS, OTHER = SourcePartition("orders", "id", 0), SourcePartition("orders", "id", 1)


def rows(*segments: tuple[SourcePartition, int, int, int, SegmentKind]) -> pa.Table:
    """Return rows of (source, start, end, records, kind)."""
    return pa.Table.from_pylist(
        [
            {
                "source_topic": source.topic,
                "source_topic_id": source.topic_id,
                "source_partition": source.partition,
                "source_start": start,
                "source_end": end,
                "record_count": count,
                "kind": kind.value,
            }
            for source, start, end, count, kind in segments
        ]
    )


def test_only_copied_records_behind_the_offset_count_and_each_partition_by_itself() -> None:
    counter = CopiedCounter([(ORDERS, 15), (ORDERS, 30), (OTHER, 0)])
    counter.add(
        rows(
            (ORDERS, 0, 10, 10, SegmentKind.DATA),
            (ORDERS, 10, 20, 10, SegmentKind.DATA),
            (ORDERS, 20, 30, 10, SegmentKind.ABORTED),
            (OTHER, 0, 10, 4, SegmentKind.DATA),
        )
    )
    counter.add(rows((ORDERS, 30, 40, 3, SegmentKind.DATA)))
    assert counter.counts == {(ORDERS, 15): 8, (ORDERS, 30): 3, (OTHER, 0): 4}


def test_copies_that_no_row_names_count_beside_the_rows() -> None:
    def copy(start: int, end: int, count: int, kind: SegmentKind = SegmentKind.DATA) -> Segment:
        target = TargetPartition("orders", "other-id", 0)
        return Segment(source=ORDERS, source_start=start, source_end=end, kind=kind, target=target, record_count=count)

    counter = CopiedCounter([(ORDERS, 5), (ORDERS, 12)])
    assert (counter.lowest_of(ORDERS), counter.lowest_of(OTHER)) == (5, None)
    counter.add(rows((ORDERS, 0, 10, 10, SegmentKind.DATA)))
    counter.add(count_rows([copy(10, 14, 4), copy(14, 16, 0, SegmentKind.GAP), copy(16, 20, 4)]))
    counter.add(count_rows([]))
    assert counter.counts == {(ORDERS, 5): 13, (ORDERS, 12): 6}


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=20), st.integers(0, 60), st.integers(1, 5))
def test_pieces_of_any_size_count_as_the_records_do(segments: list[tuple[int, bool]], offset: int, piece: int) -> None:
    made, at, expected = [], 0, 0
    for size, is_copied in segments:
        made.append((ORDERS, at, at + size, size, SegmentKind.DATA if is_copied else SegmentKind.GAP))
        expected += sum(offset <= number for number in range(at, at + size)) if is_copied else 0
        at += size
    counter = CopiedCounter([(ORDERS, offset)])
    for first in range(0, len(made), piece):
        counter.add(rows(*made[first : first + piece]))
    assert counter.counts == {(ORDERS, offset): expected}


def report(*partitions: GroupPartition) -> GroupsReport:
    group = Group(name="billing", partitions=partitions, state="empty")
    return GroupsReport(mirror="m", origin="east", other="west", groups=(group,))


def partition(offset: int | None, outcome: Outcome, source: SourcePartition | None = ORDERS) -> GroupPartition:
    to_offset = None if offset is None or outcome is Outcome.NOT_MIRRORED else offset
    place = TopicPartition("orders", 0)
    return GroupPartition(
        group="billing", topic_partition=place, offset=offset, metadata="", outcome=outcome, source=source, to_offset=to_offset
    )


def test_a_group_lacks_what_was_seen_and_neither_mirrored_nor_read() -> None:
    behind, ahead = partition(80, Outcome.TRANSLATED), partition(95, Outcome.WAITS)
    asked = report(behind, ahead)
    assert to_count(asked) == [(ORDERS, 80), (ORDERS, 95)]
    first, second = losses_of(asked, {(ORDERS, 80): 10}, {ORDERS: 90}, {ORDERS: 100})["billing"]
    assert (first.repeated_records, first.missing_offsets, first.read_ahead_offsets) == (10, 10, 0)
    assert (second.repeated_records, second.missing_offsets, second.read_ahead_offsets) == (0, 5, 5)


def test_without_a_log_end_that_the_mirror_has_seen_what_is_missing_is_unknown() -> None:
    (loss,) = losses_of(report(partition(80, Outcome.TRANSLATED)), {}, {ORDERS: 90}, None)["billing"]
    assert loss.missing_offsets is None


def test_topics_that_are_not_mirrored_are_left_out() -> None:
    asked = report(partition(1, Outcome.NOT_MIRRORED, None))
    assert to_count(asked) == []
    assert losses_of(asked, {}, {}, {}) == {"billing": []}
