"""Ends of a restore by time where records of aborted transactions, and markers, have times of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.archive_reading.test_lookup import timed
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, marker

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.streaming.planning import RestorePlanner

T = NOW_MS


def at(time_ms: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)).isoformat()


def range_of(archive: ArchiveOfTest, folder: Path, **settings: Any) -> tuple[int, int]:
    config = restore_runs.config(folder, archive.config, "127.0.0.1:1", **settings)
    offsets = (
        RestorePlanner(config, ArchiveTable.open(archive.config.table_location), archive.store).decide_ranges().ranges[ORDERS]
    )
    return offsets.start, offsets.end


def aborted(offset: int, timestamp: int) -> list[bytes]:
    """Return a record and its marker."""
    data = batch(offset, 1, attributes=0x10, producer_id=7, producer_epoch=1, base_sequence=0, timestamp=timestamp)
    return [data, marker(offset + 1, 0, 7)]


@pytest.mark.slow
def test_a_cut_ends_behind_an_aborted_record_of_the_future_unless_aborted_records_are_restored(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    batches = [batch(0, 2, timestamp=T), *aborted(2, T + 86_400_000), batch(4, 20, timestamp=T + 1)]
    archive.archive({ORDERS: batches}, aborted={ORDERS: [(7, 2)]})
    until = {"time": at(T + 1_000)}
    assert range_of(archive, tmp_path, until=until) == (0, 24)
    assert range_of(archive, tmp_path, until=until, read={"isolation_level": "read_uncommitted"}) == (0, 2)


@pytest.mark.slow
def test_an_aborted_record_is_nothing_in_front_of_a_cut_that_an_archive_began_after(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive(
        {ORDERS: [*aborted(100, 5), batch(102, 2, timestamp=9_000)]}, positions={ORDERS: 100}, aborted={ORDERS: [(7, 100)]}
    )
    with pytest.raises(
        ConfigError,
        match="orders-0: the archive began after the cut; it has offsets 100 to 104, with records from 1970-01-01T00:00:09",
    ):
        range_of(archive, tmp_path, until={"time": at(5_000)})
    assert range_of(archive, tmp_path, until={"time": at(5_000)}, read={"isolation_level": "read_uncommitted"}) == (100, 102)
    assert range_of(archive, tmp_path, until={"time": at(9_000)}) == (100, 104)


@pytest.mark.slow
def test_markers_are_nothing_that_retention_left_in_front_of_a_cut(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"orders": {"keep": "5 hours"}}))
    archive.archive({ORDERS: [batch(0, 1, timestamp=T), batch(1, 1, attributes=0x10, producer_id=7, timestamp=T)]})
    archive.now_ms += 4 * 3_600_000
    archive.archive({ORDERS: [marker(2, 1, 7)]})
    decision = archive.owner.micro_batch
    archive.archive({ORDERS: [batch(3, 1, timestamp=T + 9_000)]})
    expire(archive.config, takes_over=True, now_ms=lambda: archive.now_ms + 2 * 3_600_000)
    for until in ({"time": at(T + 1_000)}, {"decision": decision}):
        with pytest.raises(ConfigError, match="orders-0: what was archived before it has expired; it has offsets 2 to 4"):
            range_of(archive, tmp_path, until=until)
    assert range_of(archive, tmp_path, until={"time": at(T + 9_000)}) == (2, 4)


@pytest.mark.slow
def test_a_time_before_the_first_record_names_the_first_one_that_a_consumer_sees(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [*aborted(0, 900), timed(2, 9_000), timed(3, 8_000)]}, aborted={ORDERS: [(7, 0)]})
    with pytest.raises(ConfigError, match=r"first record is newer than .*08.000.* is of 1970-01-01T00:00:09.000.*\(orders-0\)"):
        range_of(archive, tmp_path, until={"time": at(8_000)})
    assert range_of(archive, tmp_path, until={"time": at(8_000)}, read={"isolation_level": "read_uncommitted"}) == (0, 2)
    disordered = ArchiveOfTest(archive_config(tmp_path / "disordered"))
    disordered.archive({ORDERS: [timed(0, 9_000), timed(1, 8_000)]})
    for time, why in (
        (8_500, "in every partition the first record is newer than .*08.500.*: the earliest"),
        (500, "is before every record"),
    ):
        with pytest.raises(ConfigError, match=rf"until.time: .*{why}.* is of 1970-01-01T00:00:09.000.*\(orders-0\)"):
            range_of(disordered, tmp_path, until={"time": at(time)})


@pytest.mark.slow
def test_a_time_before_every_record_is_refused_where_compaction_has_removed_the_first_ones(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(0, deltas=[3], timestamp=T)]})
    with pytest.raises(ConfigError, match="is before every record of the archive"):
        range_of(archive, tmp_path, until={"time": at(T - 1)})
