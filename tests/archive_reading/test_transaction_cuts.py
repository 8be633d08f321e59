"""A cut is lowered until every transaction lies below it in all partitions, or in none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st
from tests.support.archives import ORDERS
from tests.support.record_batches import batch, marker, view

from shallow_mirror.archive_format import AbortedTxn, StoredBatches
from shallow_mirror.archive_reading.segment_reader import SegmentBatches
from shallow_mirror.archive_reading.transaction_cuts import NO_END, TxnPart, TxnScan, whole_ends
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire.batches import index_batches

A, B, C = (ORDERS._replace(partition=partition) for partition in range(3))
TXN = 0x10


def test_a_transaction_that_is_cut_in_one_partition_is_left_out_of_both() -> None:
    parts = [TxnPart(A, 10, 20, (7, 0)), TxnPart(B, 30, 40, (7, 0))]
    assert whole_ends({A: 15, B: 100}, parts) == {A: 10, B: 30}
    assert whole_ends({A: 20, B: 40}, parts) == {A: 20, B: 40}
    assert whole_ends({A: 10, B: 40}, parts) == {A: 10, B: 30}
    assert whole_ends({A: 10, B: 30}, parts) == {A: 10, B: 30}


def test_a_lowered_end_may_tear_another_transaction_which_lowers_others() -> None:
    parts = [TxnPart(A, 10, 20, (7, 0)), TxnPart(B, 30, 40, (7, 0)), TxnPart(B, 25, 35, (8, 0)), TxnPart(C, 5, 6, (8, 0))]
    assert whole_ends({A: 15, B: 100, C: 50}, parts) == {A: 10, B: 25, C: 5}


def test_a_transaction_without_a_name_is_whole_in_its_partition_and_lowers_no_other() -> None:
    parts = [TxnPart(A, 10, 20, None), TxnPart(B, 30, 40, None)]
    assert whole_ends({A: 15, B: 100}, parts) == {A: 10, B: 100}


PARTS = st.lists(
    st.builds(
        lambda source, start, size, name: TxnPart(source, start, start + size, name),
        st.sampled_from([A, B]),
        st.integers(0, 5),
        st.integers(1, 4),
        st.sampled_from([None, (1, 0), (1, 1), (2, 0)]),
    ),
    max_size=6,
)


def tears(ends: dict[SourcePartition, int], parts: list[TxnPart]) -> bool:
    names = [part.name or (-1, i) for i, part in enumerate(parts)]
    for name in names:
        of_txn = [part for part, its in zip(parts, names, strict=True) if its == name]
        is_in = [part.end <= ends[part.source] for part in of_txn]
        is_out = [part.start >= ends[part.source] for part in of_txn]
        if not all(is_in) and not all(is_out):
            return True
    return False


@pytest.mark.slow
@given(st.integers(0, 9), st.integers(0, 9), PARTS)
def test_ends_are_the_highest_that_tear_nothing(a: int, b: int, parts: list[TxnPart]) -> None:
    lowered = whole_ends({A: a, B: b}, parts)
    whole = [ends for ends in itertools.product(range(a + 1), range(b + 1)) if not tears({A: ends[0], B: ends[1]}, parts)]
    assert (lowered[A], lowered[B]) == (max(ends[0] for ends in whole), max(ends[1] for ends in whole))


def scanned(source: SourcePartition, *batches: bytes, aborted: tuple[AbortedTxn, ...] = (), start: int = 0) -> SegmentBatches:
    """Return batches as a row holds them."""
    records = view(*batches)
    index = index_batches(records)
    end = int(index.last_offset[-1]) + 1
    segment = Segment(source=source, source_start=start, source_end=end, kind=SegmentKind.DATA, target=TargetPartition(*source))
    stored = StoredBatches(
        object_name="object", index=(), leader_epochs=(), aborted=aborted, crc32c=0, min_timestamp_ms=None, retention_class=""
    )
    return SegmentBatches(records, index, (), DecidedSegment(segment, None, stored), start, end)


def data(offset: int, producer_id: int, epoch: int) -> bytes:
    return batch(offset, 2, attributes=TXN, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)


def test_transactions_are_read_from_batches_and_their_markers() -> None:
    scan = TxnScan()
    # Markers of `record_batches.marker` have epoch 0: one more than that of the data is Kafka 4's, the same is an older one.
    scan.add(scanned(A, data(0, 7, -1), data(2, 7, -1), data(4, 8, 0), marker(6, 1, 7), marker(7, 1, 8), batch(8, 1)))
    aborted = (AbortedTxn(9, 10, 12),)
    scan.add(scanned(A, data(10, 9, 3), marker(12, 0, 9), data(13, 10, 5), aborted=aborted, start=9))
    scan.add(scanned(B, data(0, 11, 5), data(2, 12, 6), aborted=(AbortedTxn(12, 2, None),)))
    assert scan.parts() == [
        TxnPart(A, 0, 4, (7, -1)),
        TxnPart(A, 4, 6, None),
        TxnPart(A, 13, NO_END, (10, 5)),
        TxnPart(B, 0, NO_END, (11, 5)),
    ]
    assert scan.unnamed_count == 1
    assert scan.has_open(B, below=1)
    assert not scan.has_open(B, below=0)


def test_an_aborted_transaction_says_nothing_of_the_next_one_of_its_producer() -> None:
    scan = TxnScan()
    aborted = (AbortedTxn(7, 0, 2),)
    scan.add(scanned(A, data(0, 7, 4), marker(2, 0, 7, producer_epoch=5), data(3, 7, 6), aborted=aborted))
    scan.add(scanned(B, data(0, 7, 6), marker(2, 1, 7, producer_epoch=7)))
    assert scan.parts() == [TxnPart(B, 0, 2, (7, 6)), TxnPart(A, 3, NO_END, (7, 6))]


def test_a_missing_marker_ends_a_transaction_where_its_producer_begins_another_one_or_offsets_are_missing() -> None:
    scan = TxnScan()
    aborted = (AbortedTxn(8, 6, 8),)
    scan.add(
        scanned(A, data(0, 7, 4), data(2, 7, 5), data(4, 8, 1), data(6, 8, 2), marker(8, 0, 8, producer_epoch=3), aborted=aborted)
    )
    assert scan.parts() == [TxnPart(A, 0, 2, (7, 4)), TxnPart(A, 4, 6, (8, 1)), TxnPart(A, 2, NO_END, (7, 5))]
    scan.add_hole(A, 20)
    assert scan.read_end(A) == 20
    assert TxnPart(A, 2, 4, (7, 5)) in scan.parts()
