"""The source side of a restore: batches of an archive, up to the cut, with what is damaged or gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.archives import CLUSTER_ID, ORDERS, ArchiveOfTest, archive_config, replace_files
from tests.support.record_batches import batch

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import ArchiveTable, RestoreRanges, TopicDescription
from shallow_mirror.errors import ArchiveFormatError, ObjectMissingError
from shallow_mirror.types import IsolationLevel, OffsetRange, Segment, SegmentKind, TargetPartition, TopicPartition
from shallow_mirror.verify.archive_side import ArchiveSide
from shallow_mirror.verify.partition_reader import CRC_REASON, Chunk, LogReader

ORDERS_0 = TopicPartition("orders", 0)
NO_STARTS = np.zeros(0, np.int64)


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveOfTest:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(0, 10), batch(10, 10)]})
    archive.archive({ORDERS: [batch(20, 10)]})
    return archive


def side(archive: ArchiveOfTest, start: int = 0, end: int = 30, configs: dict[str, str] | None = None) -> ArchiveSide:
    table = ArchiveTable.open(archive.config.table_location)
    newest = max(row.micro_batch for row in table.rows())
    ranges = {ORDERS: OffsetRange(start, end)}
    decided = RestoreRanges(
        archive_id=table.archive_id, until="", last_decision=newest, ranges=ranges, lineages=dict.fromkeys(ranges, 0)
    )
    described = TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=1, configs=configs or {})
    return ArchiveSide(table, archive.store, decided, {"orders": described}, IsolationLevel.READ_COMMITTED, fetch_bytes=1 << 20)


def read(reader: LogReader, start: int, end: int, *, is_first: bool = True) -> list[int]:
    """Return the base offsets of the batches that belong to a range."""
    bases: list[int] = []
    for chunk in reader.read(OffsetRange(start, end), 1.0, is_first=is_first):
        assert isinstance(chunk, Chunk)
        bases += chunk.index.headers["base_offset"][chunk.chosen].tolist()
    return bases


@pytest.mark.slow
def test_batches_of_a_range_are_read_up_to_the_cut(archive: ArchiveOfTest) -> None:
    reader, second = side(archive, end=24).readers(ORDERS_0, NO_STARTS)
    assert read(reader, 0, 30) == [0, 10, 20]
    assert read(second, 15, 20) == [10]
    assert read(second, 15, 30, is_first=False) == [20]
    assert (reader.records_until, reader.log.log_end) == (24, 24)
    assert reader.read_bytes == len(batch(0, 10)) * 3


@pytest.mark.slow
def test_a_table_that_a_running_archive_compacts_meanwhile_is_read_on(archive: ArchiveOfTest) -> None:
    opened = side(archive)
    replace_files(archive.config)
    reader, _ = opened.readers(ORDERS_0, NO_STARTS)
    assert read(reader, 0, 30) == [0, 10, 20]


@pytest.mark.slow
def test_what_is_known_of_the_topic_comes_from_the_archive(archive: ArchiveOfTest) -> None:
    stamped = side(archive, configs={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"})
    view = stamped.topic("orders")
    assert view is not None
    assert (view.topic_id, view.is_stamped_by_broker, view.is_compacted) == (ORDERS.topic_id, True, False)
    assert stamped.cluster_id() == CLUSTER_ID
    assert stamped.topic("others") is None
    assert not stamped.has(TopicPartition("orders", 1))
    assert stamped.log_view(TopicPartition("orders", 1)).log_end == 0


@pytest.mark.slow
def test_a_batch_that_was_archived_damaged_is_reported_and_the_next_ones_are_read(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    damaged = bytearray(batch(0, 10))
    damaged[-1] ^= 1
    archive.archive({ORDERS: [bytes(damaged), batch(10, 10)]})
    archive.archive({ORDERS: [batch(20, 10)]})
    reader, _ = side(archive).readers(ORDERS_0, NO_STARTS)
    assert read(reader, 0, 30) == [0, 10, 20]
    assert reader.log.damages == {0: CRC_REASON}


@pytest.mark.slow
def test_a_changed_object_ends_the_verification(archive: ArchiveOfTest, tmp_path: Path) -> None:
    first = min((tmp_path / "objects").rglob("*.batches"))
    content = bytearray(first.read_bytes())
    content[len(batch(0, 10)) + 7] ^= 1  # the base offset of the second batch
    first.write_bytes(content)
    reader, _ = side(archive).readers(ORDERS_0, NO_STARTS)
    with pytest.raises(ArchiveFormatError, match="offsets 0 to 19 of orders-0"):
        read(reader, 15, 30)


@pytest.mark.slow
def test_a_missing_object_ends_the_verification(archive: ArchiveOfTest, tmp_path: Path) -> None:
    min((tmp_path / "objects").rglob("*.batches")).unlink()
    reader, _ = side(archive).readers(ORDERS_0, NO_STARTS)
    with pytest.raises(ObjectMissingError):
        read(reader, 0, 30)


@pytest.mark.slow
def test_what_retention_of_the_archive_deleted_lies_below_the_start_of_the_log(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(20, 10)]}, positions={ORDERS: 20})
    assert side(archive, start=0).log_view(ORDERS_0).log_start == 20


@pytest.mark.slow
def test_records_of_a_batch_below_its_row_do_not_belong_to_the_comparison(tmp_path: Path) -> None:
    """DeleteRecords cut the log inside of a batch before it was archived."""
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(0, 10)]})
    expired = Segment(source=ORDERS, source_start=10, source_end=14, kind=SegmentKind.EXPIRED, target=TargetPartition(*ORDERS))
    archive.decide(DecidedSegment(expired, None))
    archive.archive({ORDERS: [batch(10, 10)]})
    reader, _ = side(archive, end=20).readers(ORDERS_0, NO_STARTS)
    assert read(reader, 0, 20) == [0, 10]
    assert reader.data_rows is not None
    assert [ends.tolist() for ends in reader.data_rows] == [[0, 14], [10, 20]]
