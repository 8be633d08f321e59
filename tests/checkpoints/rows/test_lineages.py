"""Which rows make up the log of a lineage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.archive_format.archived_rows import data, gap

from shallow_mirror.archive_format import AbortedTxn, ArchivedSegment
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.rows.lineages import Lineages, PartitionLineages
from shallow_mirror.types import SourcePartition

P, Q = (SourcePartition("orders", "id", number) for number in range(2))


def lineages(**starts: int) -> PartitionLineages:
    """Return a partition with rows that begin at `starts`: l0=0, l1=57."""
    partition = PartitionLineages()
    for name, start in starts.items():
        partition.add_start(int(name[1:]), start + 5)
        partition.add_start(int(name[1:]), start)
    return partition


def decided(row: ArchivedSegment, lineage: int = 0, aborted: tuple[AbortedTxn, ...] | None = None) -> DecidedSegment:
    stored = row.stored if row.stored is None or aborted is None else replace(row.stored, aborted=aborted)
    return DecidedSegment(replace(row.segment, lineage=lineage), None, stored)


def parts(partition: PartitionLineages, lineage: int | None, *rows: tuple[int, int, int]) -> list[tuple[int, int] | None]:
    """Return what of rows (lineage, start, end) is in the log of a lineage."""
    view = partition.view(lineage)
    return [view.part_of(*row) for row in rows]


def test_a_lineage_has_the_former_rows_up_to_where_it_begins() -> None:
    rows = [(0, 0, 40), (0, 40, 80), (0, 80, 100), (1, 57, 57), (1, 57, 90)]
    two = lineages(l0=0, l1=57)
    assert parts(two, None, *rows) == [(0, 40), (40, 57), None, (57, 57), (57, 90)]
    assert parts(two, 0, *rows) == [(0, 40), (40, 80), (80, 100), None, None]


def test_former_rows_end_at_the_lowest_start_of_the_later_ones() -> None:
    three = lineages(l0=0, l1=57, l2=30)
    assert parts(three, None, (0, 0, 100), (1, 57, 90), (2, 30, 60)) == [(0, 30), None, (30, 60)]
    assert parts(three, 1, (0, 0, 100), (1, 57, 90), (2, 30, 60)) == [(0, 57), (57, 90), None]
    rising = lineages(l0=0, l1=30, l2=57)
    assert parts(rising, None, (0, 0, 100), (1, 30, 90), (2, 57, 60)) == [(0, 30), (30, 57), (57, 60)]


def test_a_number_that_is_missing_is_the_highest_one_below() -> None:
    rebuilt = lineages(l1=20, l4=30)
    assert [rebuilt.view(number).lineage for number in (None, 9, 4, 3, 1)] == [4, 4, 4, 1, 1]
    assert parts(rebuilt, 0, (1, 20, 40)) == [None]
    assert rebuilt.numbers == (1, 4)


def test_a_partition_without_truncations_has_one_lineage() -> None:
    one = Lineages({P: lineages(l0=0, l1=5)})
    assert (list(one), len(one), P in one, Q in one) == ([P], 1, True, False)
    assert (one.numbers(P), one.numbers(Q)) == ((0, 1), (0,))
    row = decided(data(3, 9, Q))
    assert one.view(Q).clipped(row) is row


def test_a_clipped_row_keeps_its_batches_and_loses_its_end() -> None:
    view = lineages(l0=0, l1=57).view()
    row = decided(data(40, 80))
    clipped = view.clipped(row)
    assert clipped is not None
    assert (clipped.segment.source_end, clipped.segment.target_end, clipped.segment.record_count) == (57, 57, 40)
    assert clipped.stored is not None
    assert row.stored is not None
    assert (clipped.stored.index, clipped.stored.crc32c) == (row.stored.index, row.stored.crc32c)
    expired = view.clipped(decided(gap(50, 60)))
    assert expired is not None
    assert (expired.segment.source_end, expired.segment.target_end) == (57, None)


@pytest.mark.parametrize(
    ("marker_in_lineage_1", "expected"),
    [
        (None, [(7, 10, 20), (8, 30, None)]),
        (90, [(7, 10, 20), (8, 30, None), (9, 40, None)]),
    ],
    ids=["9 was not aborted", "9 was aborted in the new log"],
)
def test_aborts_whose_marker_was_lost_do_not_count_and_those_of_the_new_log_do(
    marker_in_lineage_1: int | None, expected: list[tuple[int, int, int | None]]
) -> None:
    """7 was aborted in front of the divergence. The markers of 8, which both logs aborted, and 9 lie behind it."""
    partition = lineages(l0=0, l1=57)
    partition.add_aborted(0, 7, 10, 20)
    partition.add_aborted(0, 8, 30, None)
    partition.add_aborted(0, 8, 30, 70)
    partition.add_aborted(0, 9, 40, 75)
    partition.add_aborted(1, 8, 30, 60)
    if marker_in_lineage_1 is not None:
        partition.add_aborted(1, 9, 40, marker_in_lineage_1)
    row = decided(data(0, 80), aborted=(AbortedTxn(7, 10, 20), AbortedTxn(8, 30, 70), AbortedTxn(9, 40, 75)))
    clipped = partition.view().clipped(row)
    assert clipped is not None
    assert clipped.stored is not None
    assert [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in clipped.stored.aborted] == expected
    assert partition.view(0).clipped(row) == row


def test_a_row_in_front_of_a_transaction_does_not_name_it() -> None:
    partition = lineages(l0=0, l1=57)
    partition.add_aborted(1, 8, 30, 60)
    clipped = partition.view().clipped(decided(data(0, 30), aborted=()))
    assert clipped is not None
    assert clipped.stored is not None
    assert clipped.stored.aborted == ()
