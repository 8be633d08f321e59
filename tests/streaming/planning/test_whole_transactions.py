"""A restore with whole transactions ends where no transaction is torn, whatever the cut was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import restore_runs
from tests.support.archives import ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, marker

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.streaming.planning import RestorePlanner
from shallow_mirror.types import OffsetRange, Segment, SegmentKind, TargetPartition

OTHER = ORDERS._replace(partition=1)
TXN = 0x10


def data(offset: int, producer_id: int, epoch: int = -1) -> bytes:
    """Return a batch of a transaction that has an epoch of its own: the markers of `record_batches` have epoch 0."""
    return batch(offset, 2, attributes=TXN, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveOfTest:
    """Three transactions of both partitions: 7 is committed, 8 is aborted, 9 is archived later in OTHER."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive(
        {
            ORDERS: [data(0, 7), marker(2, 1, 7), data(3, 8), marker(5, 0, 8), data(6, 9), marker(8, 1, 9)],
            OTHER: [batch(0, 4), data(4, 7), marker(6, 1, 7), data(7, 8), marker(9, 0, 8)],
        },
        aborted={ORDERS: [(8, 3)], OTHER: [(8, 7)]},
    )
    archive.archive({OTHER: [data(10, 9), marker(12, 1, 9), batch(13, 3)]})
    return archive


def ends(archive: ArchiveOfTest, folder: Path, **until: object) -> tuple[int, int]:
    config = restore_runs.config(folder, archive.config, "127.0.0.1:1", until=until)
    decided = RestorePlanner(config, ArchiveTable.open(archive.config.table_location), archive.store).decide_ranges()
    assert {offsets.start for offsets in decided.ranges.values()} == {0}
    assert isinstance(decided.ranges[ORDERS], OffsetRange)
    return decided.ranges[ORDERS].end, decided.ranges[OTHER].end


@pytest.mark.slow
def test_a_transaction_that_is_cut_in_one_of_two_partitions_is_left_out_of_both(archive: ArchiveOfTest, tmp_path: Path) -> None:
    cut = {"orders": {0: 9, 1: 5}}
    assert ends(archive, tmp_path, offsets=cut) == (9, 5)
    assert ends(archive, tmp_path, offsets=cut, whole_transactions=True) == (0, 4)


@pytest.mark.slow
def test_the_other_part_of_a_transaction_may_be_archived_behind_the_cut(archive: ArchiveOfTest, tmp_path: Path) -> None:
    decision = min(row.micro_batch for row in ArchiveTable.open(archive.config.table_location).rows())
    assert ends(archive, tmp_path, decision=decision) == (9, 10)
    assert ends(archive, tmp_path, decision=decision, whole_transactions=True) == (6, 10)


@pytest.mark.slow
def test_aborted_transactions_and_whole_ones_lower_nothing(archive: ArchiveOfTest, tmp_path: Path) -> None:
    assert ends(archive, tmp_path, whole_transactions=True) == (9, 16)
    assert ends(archive, tmp_path, offsets={"orders": {0: 4, 1: 8}}, whole_transactions=True) == (4, 8)


@pytest.mark.slow
def test_transactions_that_share_an_epoch_are_whole_in_each_partition_only_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [data(0, 7, 0), marker(2, 1, 7)], OTHER: [data(0, 7, 0), marker(2, 1, 7)]})
    with caplog.at_level("WARNING"):
        assert ends(archive, tmp_path, offsets={"orders": {0: 1, 1: 3}}, whole_transactions=True) == (0, 3)
    assert "2 transactions are" in caplog.text


@pytest.mark.slow
def test_rows_of_other_lineages_tear_nothing(archive: ArchiveOfTest, tmp_path: Path) -> None:
    """In the new log of ORDERS the transaction of producer 9 was never written."""
    archive.begin_lineage(ORDERS, 6, 3)
    archive.archive({ORDERS: [batch(6, 1, leader_epoch=4)]})
    cut = {"orders": {0: 7, 1: 10}}
    assert ends(archive, tmp_path, offsets=cut, whole_transactions=True) == (7, 10)
    assert ends(archive, tmp_path, offsets=cut, whole_transactions=True, lineage=0) == (6, 10)


@pytest.mark.slow
def test_a_transaction_behind_an_aborted_one_of_its_producer_is_whole_as_well(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive(
        {
            ORDERS: [data(0, 7, 4), marker(2, 0, 7, producer_epoch=5), data(3, 7, 6)],
            OTHER: [batch(0, 4), data(4, 7, 6), marker(6, 1, 7, producer_epoch=7)],
        },
        aborted={ORDERS: [(7, 0)]},
    )
    assert ends(archive, tmp_path, offsets={"orders": {0: 5, 1: 4}}, whole_transactions=True) == (3, 4)


@pytest.mark.slow
def test_a_transaction_without_a_marker_is_left_out_and_one_whose_marker_came_much_later_is_not(tmp_path: Path) -> None:
    """At the end of an archive more records of the transaction may have followed at the source."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive(
        {ORDERS: [batch(0, 2), data(2, 7, 4)], OTHER: [data(0, 7, 4), marker(2, 1, 7, producer_epoch=5), batch(3, 1)]}
    )
    assert ends(archive, tmp_path, whole_transactions=True) == (2, 0)
    archive.now_ms += 3 * 3_600_000  # the archive did not run for so long
    archive.archive({ORDERS: [data(4, 7, 4), marker(6, 1, 7, producer_epoch=5)]})
    assert ends(archive, tmp_path, offsets={"orders": {0: 4, 1: 4}}, whole_transactions=True) == (2, 0)
    assert ends(archive, tmp_path, offsets={"orders": {0: 6, 1: 4}}, whole_transactions=True) == (6, 4)
    archive.archive({ORDERS: [batch(7, 1)]})
    assert ends(archive, tmp_path, offsets={"orders": {0: 4, 1: 4}}, whole_transactions=True) == (2, 0)
    assert ends(archive, tmp_path, offsets={"orders": {0: 7, 1: 4}}, whole_transactions=True) == (7, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SegmentKind.GAP, SegmentKind.EXPIRED])
@pytest.mark.parametrize("is_lost", [False, True])
def test_only_offsets_that_the_source_had_may_hold_a_missing_marker(tmp_path: Path, kind: SegmentKind, *, is_lost: bool) -> None:
    """Offsets that had expired, or of which a rebuild has lost the object: not those that compaction left without a batch."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    hole = Segment(source=ORDERS, source_start=4, source_end=9, kind=kind, target=TargetPartition(*ORDERS))
    first, last = {ORDERS: [batch(0, 2), data(2, 7, 4)]}, {ORDERS: [batch(9, 1)]}
    archive.decide(*archive.write(first, gaps=() if is_lost else [hole]))
    if is_lost:
        archive.decide(*archive.write(last, positions={ORDERS: 9}, gaps=[hole]))
    else:
        archive.archive(last)
    is_ended = is_lost or kind is SegmentKind.EXPIRED
    config = restore_runs.config(tmp_path, archive.config, "127.0.0.1:1", until={"whole_transactions": True})
    decided = RestorePlanner(config, ArchiveTable.open(archive.config.table_location), archive.store).decide_ranges()
    assert decided.ranges == {ORDERS: OffsetRange(0, 10 if is_ended else 2)}
