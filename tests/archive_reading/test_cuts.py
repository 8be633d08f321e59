"""The end of a partition at a time: the first record that is newer, of those that a consumer sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.archive_reading.test_lookup import timed
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_reading.cuts import first_newer_offset, first_visible_record
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.sinks.archive import object_builder
from shallow_mirror.types import IsolationLevel

T = NOW_MS
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def transactional(offset: int, producer_id: int, timestamp: int) -> bytes:
    return batch(offset, 1, attributes=0x10, producer_id=producer_id, producer_epoch=1, base_sequence=0, timestamp=timestamp)


def rows_of(archive: ArchiveOfTest) -> list[ArchiveRow]:
    return ArchiveTable.open(archive.config.table_location).rows()


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveOfTest:
    """Two records, an aborted record of tomorrow and its marker, then 20 records."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    batches = [batch(0, 2, timestamp=T), transactional(2, 7, T + 86_400_000), marker(3, 0, 7), batch(4, 20, timestamp=T + 1)]
    archive.archive({ORDERS: batches}, aborted={ORDERS: [(7, 2)]})
    return archive


@pytest.mark.slow
def test_an_aborted_record_of_the_future_ends_a_cut_only_where_aborted_records_are_read(archive: ArchiveOfTest) -> None:
    rows = rows_of(archive)
    assert first_newer_offset(archive.store, rows, T + 1_000, COMMITTED) is None
    assert first_newer_offset(archive.store, rows, T + 1_000, UNCOMMITTED) == 2
    assert first_newer_offset(archive.store, rows, T, COMMITTED) == 4


@pytest.mark.parametrize("index_bytes", [1, 1 << 20])
def test_a_transaction_that_was_committed_behind_an_aborted_one_of_its_producer_ends_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index_bytes: int
) -> None:
    """Also where the runs with the aborted one are not read, because all that they hold is older."""
    monkeypatch.setattr(object_builder, "INDEX_BYTES", index_bytes)
    archive = ArchiveOfTest(archive_config(tmp_path))
    batches = [transactional(0, 7, T), marker(1, 0, 7), transactional(2, 7, T + 50), marker(3, 1, 7)]
    archive.archive({ORDERS: batches}, aborted={ORDERS: [(7, 0)]})
    assert first_newer_offset(archive.store, rows_of(archive), T + 10, COMMITTED) == 2


@pytest.mark.slow
def test_an_aborted_transaction_that_ends_in_the_next_row_does_not_end_a_cut(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(0, 1, timestamp=T), transactional(1, 7, T + 50)]}, aborted={ORDERS: [(7, 1)]})
    late = [transactional(2, 7, T + 60), marker(3, 0, 7), batch(4, 1, timestamp=T + 70)]
    archive.archive({ORDERS: late}, aborted={ORDERS: [(7, 1)]})
    assert first_newer_offset(archive.store, rows_of(archive), T + 10, COMMITTED) == 4


def test_a_marker_never_ends_a_cut(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [transactional(0, 7, 10), marker(1, 1, 7), batch(2, 1, timestamp=20)]})
    for isolation in (COMMITTED, UNCOMMITTED):  # the marker is of 1,000
        assert first_newer_offset(archive.store, rows_of(archive), 500, isolation) is None


def test_a_record_below_the_start_of_a_row_does_not_end_a_cut(tmp_path: Path) -> None:
    """The archive began inside of a batch: the brokers return it whole."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [timed(0, T + 90, T + 95, T, T + 1)]}, positions={ORDERS: 2})
    assert first_newer_offset(archive.store, rows_of(archive), T + 10, COMMITTED) is None
    assert first_newer_offset(archive.store, rows_of(archive), T, COMMITTED) == 3


@pytest.mark.slow
def test_the_first_record_that_a_consumer_sees_is_found_by_headers(archive: ArchiveOfTest, tmp_path: Path) -> None:
    rows = rows_of(archive)
    assert first_visible_record(archive.store, rows, COMMITTED) == (0, T)
    other = ArchiveOfTest(archive_config(tmp_path / "other"))
    aborted = [transactional(0, 7, T), marker(1, 0, 7)]
    append_time = batch(3, 1, attributes=0x08, timestamp=T - 5, max_timestamp=T + 9)
    other.archive({ORDERS: [*aborted, batch(2, 1, timestamp=-1), append_time]}, aborted={ORDERS: [(7, 0)]})
    assert first_visible_record(other.store, rows_of(other), COMMITTED) == (2, None)
    assert first_visible_record(other.store, rows_of(other), UNCOMMITTED) == (0, T)
    assert first_visible_record(other.store, rows_of(other), COMMITTED, after_ms=T) == (3, T + 9)
    assert first_visible_record(other.store, rows_of(other), COMMITTED, after_ms=T + 9) is None
    assert first_visible_record(other.store, rows_of(other)[:0], COMMITTED) is None


def test_a_batch_is_divided_only_behind_one_of_its_records(tmp_path: Path) -> None:
    """Compaction may have removed the first ones."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [timed(0, T, T + 50), batch(2, deltas=[3], timestamp=T + 90)]})
    assert first_newer_offset(archive.store, rows_of(archive), T + 10, COMMITTED) == 1
    assert first_newer_offset(archive.store, rows_of(archive), T + 60, COMMITTED) == 2
