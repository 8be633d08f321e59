"""The rows of a topic as pairs of partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.rows.schema import rows_to_arrow
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition
from shallow_mirror.verify import DifferenceKind
from shallow_mirror.verify.partition_map import PAIR_COLUMNS, PartitionPair, partition_pairs

SOURCE, TARGET = SourcePartition("orders", "id", 0), TargetPartition("copy", "other", 0)


def row(start: int, end: int, kind: SegmentKind, target_start: int | None, txn: SlotTxn | None = None) -> DecidedSegment:
    segment = Segment(
        source=SOURCE,
        source_start=start,
        source_end=end,
        kind=kind,
        target=TARGET,
        target_start=target_start,
        target_end=None if target_start is None else target_start + end - start,
    )
    return DecidedSegment(segment, txn, shared_producer_id=None if txn else 77)


def pair_of(*rows: DecidedSegment) -> PartitionPair:
    (pair,) = partition_pairs(rows_to_arrow(rows, 1, 1, 0).select(PAIR_COLUMNS), "orders", "id", ())
    return pair


def test_offsets_of_a_preserved_partition_are_records_at_their_own_offset_or_fillers() -> None:
    pair = pair_of(row(4, 10, SegmentKind.DATA, 4), row(10, 11, SegmentKind.COMMIT, None), row(11, 15, SegmentKind.GAP, None))
    assert (pair.is_preserved, pair.filler_count, pair.problems) == (True, 5, ())


def test_a_preserved_row_that_leads_to_another_offset_is_a_difference() -> None:
    (problem,) = pair_of(row(0, 4, SegmentKind.DATA, 0), row(4, 10, SegmentKind.DATA, 5)).problems
    assert (problem.kind, problem.start, problem.end) == (DifferenceKind.REORDERED, 4, 10)
    assert "offsets are preserved" in problem.reason


@pytest.mark.parametrize("is_preserved_first", [False, True])
def test_rows_of_a_transaction_may_lead_anywhere(is_preserved_first: bool) -> None:
    txn = SlotTxn("m-0", 5, 1)
    first = (row(0, 4, SegmentKind.DATA, 0),) if is_preserved_first else ()
    rows = (*first, row(4, 10, SegmentKind.DATA, 7, txn), row(10, 12, SegmentKind.ABORTED, None, txn))
    pair = pair_of(*rows)
    assert (pair.is_preserved, pair.filler_count, pair.problems) == (is_preserved_first, 0, ())


FORMER_SOURCE, FORMER_TARGET = SourcePartition("orders", "former", 0), TargetPartition("copy", "former-copy", 0)


def former(end: int, target: TargetPartition = FORMER_TARGET) -> tuple[DecidedSegment, ...]:
    """Rows of a topic that was deleted since: more than its successor has."""
    rows = [row(0, 0, SegmentKind.GAP, None), row(0, end, SegmentKind.DATA, 0), row(end, end + 1, SegmentKind.COMMIT, None)]
    return tuple(replace(each, segment=replace(each.segment, source=FORMER_SOURCE, target=target)) for each in rows)


def pair_behind(former_rows: tuple[DecidedSegment, ...], *rows: DecidedSegment, forgotten: tuple[str, ...] = ()) -> PartitionPair:
    table = rows_to_arrow((*former_rows, *rows), 1, 1, 0).select(PAIR_COLUMNS)
    (pair,) = partition_pairs(table, "orders", "id", (), forgotten_ids=forgotten)
    return pair


@pytest.mark.parametrize(("forgotten", "gone"), [((), 13), (("former",), 0)], ids=["created again", "forgotten"])
def test_rows_of_a_former_topic_do_not_choose_the_target_of_its_successor(forgotten: tuple[str, ...], gone: int) -> None:
    pair = pair_behind(former(13), row(0, 4, SegmentKind.DATA, 0), forgotten=forgotten)
    assert (pair.source, pair.target, pair.problems, len(pair.rows)) == (SOURCE, TARGET, (), 1)
    assert pair.gone_offsets == gone
    assert pair.elsewhere[0].tolist() == []


def test_copies_of_a_forgotten_topic_in_the_same_target_topic_are_not_additional() -> None:
    copied = row(0, 4, SegmentKind.DATA, 14, SlotTxn("m-0", 5, 1))
    pair = pair_behind(former(13, TARGET), copied, forgotten=("former",))
    assert (pair.target, pair.problems, pair.gone_offsets) == (TARGET, (), 0)
    assert [ends.tolist() for ends in pair.elsewhere] == [[0], [13]]


def test_a_topic_that_is_gone_is_compared_where_it_was_copied_to_last_without_forgotten_ones() -> None:
    last = SourcePartition("orders", "last", 0)
    rows = [replace(each, segment=replace(each.segment, source=last)) for each in (row(0, 4, SegmentKind.DATA, 0),)]
    table = rows_to_arrow((*former(13), *rows), 1, 1, 0).select(PAIR_COLUMNS)
    (pair,) = partition_pairs(table, "orders", None, (), forgotten_ids=("former",))
    assert (pair.source, pair.target, pair.gone_offsets) == (last, TARGET, 4)
