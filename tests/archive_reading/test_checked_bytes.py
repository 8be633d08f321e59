"""No byte leaves an archive that is not the one that was archived, whoever reads it and however little of it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.archives import ORDERS, PAYMENTS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, record

from shallow_mirror.archive_reading import old_rows, segment_reader
from shallow_mirror.archive_reading.archive_rows import batch_rows, record_rows
from shallow_mirror.archive_reading.cuts import cut_batch, first_newer_offset
from shallow_mirror.archive_reading.lookup import ArchiveReader
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.scan_plan import plan_scan, read_part
from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.errors import ArchiveFormatError, ObjectMissingError
from shallow_mirror.sinks.archive import object_builder
from shallow_mirror.sinks.slots.archive_readings import ArchiveReadingFactory
from shallow_mirror.types import IsolationLevel, OffsetRange, PlannedRange, SourcePartition
from shallow_mirror.verify.archive_side import ArchivedPartitionReader
from shallow_mirror.verify.partition_reader import LogView

pytestmark = pytest.mark.thorough

TIME_MS = 5_000
BATCHES, RECORDS = 6, 3
"""Of each object: runs of two batches each."""


def batch_at(offset: int, text: bytes = b"order") -> bytes:
    payload = b"".join(record(delta, None, text) for delta in range(RECORDS))
    return batch(offset, RECORDS, payload=payload, timestamp=TIME_MS + offset, max_timestamp=TIME_MS + offset + RECORDS)


BATCH_BYTES = len(batch_at(0))
RUN_OFFSETS = 2 * RECORDS


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArchiveOfTest:
    """Two decisions: orders and payments in objects of two slots, then orders again. All batches have the same size."""
    monkeypatch.setattr(object_builder, "INDEX_BYTES", 2 * BATCH_BYTES)
    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", 2 * BATCH_BYTES)
    monkeypatch.setattr(old_rows, "_known", {})
    monkeypatch.setattr(old_rows, "_warned", set())
    archive = ArchiveOfTest(archive_config(tmp_path))
    offsets = range(0, BATCHES * RECORDS, RECORDS)
    of_orders = archive.write({ORDERS: [batch_at(offset) for offset in offsets]}, slot=0)
    of_payments = archive.write({PAYMENTS: [batch_at(offset, b"money") for offset in offsets]}, slot=1)
    archive.owner.decide(of_orders + of_payments, highest_slot=-1)
    archive.owner.settle()
    archive.archive({ORDERS: [batch_at(BATCHES * RECORDS + offset, b"later") for offset in offsets]})
    return archive


def rows_of(archive: ArchiveOfTest, source: SourcePartition = ORDERS) -> list[DecidedSegment]:
    rows = ArchiveTable.open(archive.config.table_location).rows()
    return [row.row for row in rows if row.segment.source == source]


def path_of(archive: ArchiveOfTest, row: DecidedSegment) -> Path:
    assert row.stored is not None
    return Path(archive.config.objects, row.stored.object_name)


def older(rows: list[DecidedSegment]) -> list[DecidedSegment]:
    """Return the rows as format 1.0 had them."""
    return [replace(row, stored=replace(row.stored, run_crc32c=None)) for row in rows if row.stored is not None]


Read = Callable[[ArchiveOfTest, list[DecidedSegment], int, int], object]
"""Read the offsets [start, end) of orders."""


def restored(archive: ArchiveOfTest, rows: list[DecidedSegment], start: int, end: int) -> object:
    planned = PlannedRange(slot=0, source=ORDERS, start=start, end=end, bytes_per_offset=1.0)
    factory = ArchiveReadingFactory(archive.store, [planned], {ORDERS: start}, {ORDERS: rows}, read_ahead_bytes=1 << 20)
    return [bytes(part.records) for response in factory.begin(None) for part in response]


def verified(archive: ArchiveOfTest, rows: list[DecidedSegment], start: int, end: int) -> object:
    """Read as `verify --deep` of a restore does."""
    reader = ArchivedPartitionReader(
        archive.store,
        ORDERS.topic_partition,
        LogView(start, end, False),
        rows,  # type: ignore[arg-type]
        isolation=IsolationLevel.READ_COMMITTED,
        fetch_bytes=1 << 20,
    )
    return list(reader.read(OffsetRange(start, end), 1.0, is_first=True))


def cut_by_time(archive: ArchiveOfTest, rows: list[DecidedSegment], start: int, _end: int) -> object:
    return first_newer_offset(archive.store, rows, TIME_MS + start - 1)


def cut_by_offset(archive: ArchiveOfTest, rows: list[DecidedSegment], start: int, _end: int) -> object:
    return cut_batch(archive.store, rows, start)


def looked_up(archive: ArchiveOfTest, _rows: list[DecidedSegment], start: int, _end: int) -> object:
    reader = ArchiveReader.open(archive.config.tables, archive.config.objects)
    return reader.find_record("orders", 0, offset=start)


def scanned(archive: ArchiveOfTest, _rows: list[DecidedSegment], start: int, end: int) -> Iterator[object]:
    bounds = ReadBounds(topics=frozenset({"orders"})).from_offset(start).up_to_offset(end)
    for part in plan_scan(ArchiveTable.open(archive.config.table_location), bounds, part_bytes=1):
        for batches in read_part(archive.store, part):
            yield from batch_rows(batches)
            yield from record_rows([batches], bounds)


DECIDING: list[Read] = [restored, verified, cut_by_time, cut_by_offset]
EVERY: list[Read] = [*DECIDING, looked_up, lambda *given: list(scanned(*given))]


def refuses(read: Callable[[], object]) -> str:
    with pytest.raises((ArchiveFormatError, ObjectMissingError)) as raised:
        read()
    return str(raised.value)


def test_a_flipped_bit_in_any_byte_is_found_by_whoever_reads_its_run(archive: ArchiveOfTest) -> None:
    rows = rows_of(archive)
    path = path_of(archive, rows[0])
    content = path.read_bytes()
    for pos in range(BATCHES * BATCH_BYTES):
        start = RUN_OFFSETS * (pos // (2 * BATCH_BYTES))
        damaged = bytearray(content)
        damaged[pos] ^= 1 << pos % 8
        path.write_bytes(damaged)
        for read in (restored, DECIDING[pos % 4]) if pos % 64 else EVERY:
            problem = refuses(lambda read=read, at=start: read(archive, rows, at, at + 1))  # type: ignore[misc]
            assert f"byte {pos - pos % (2 * BATCH_BYTES)}: the checksum of the {2 * BATCH_BYTES} bytes" in problem
            assert f"offsets {start} to {start + RUN_OFFSETS - 1} of orders-0" in problem


@pytest.mark.parametrize("pos", range(17))
def test_a_flipped_bit_in_bytes_that_no_batch_covers_is_found_by_every_reader(archive: ArchiveOfTest, pos: int) -> None:
    rows = rows_of(archive)
    path = path_of(archive, rows[0])
    content = path.read_bytes()
    for bit in range(8):
        damaged = bytearray(content)
        damaged[3 * BATCH_BYTES + pos] ^= 1 << bit
        path.write_bytes(damaged)
        refuses(lambda: restored(archive, rows, 9, 10))
    for read in EVERY:
        assert "offsets 6 to 11 of orders-0" in refuses(lambda read=read: read(archive, rows, 9, 10))  # type: ignore[misc]
        read(archive, rows, 3, 4)  # another run


def exchange(first: Path, second: Path) -> None:
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


@pytest.mark.parametrize("other", [1, 2])
def test_exchanged_objects_are_found_by_every_reader(archive: ArchiveOfTest, other: int) -> None:
    rows = rows_of(archive)
    of_another_slot, of_another_decision = rows_of(archive, PAYMENTS)[0], rows[1]
    exchange(path_of(archive, rows[0]), path_of(archive, of_another_slot if other == 1 else of_another_decision))
    for read in EVERY:
        for start in (0, 7, 17):
            assert "the checksum of" in refuses(lambda read=read, at=start: read(archive, rows, at, at + 1))  # type: ignore[misc]


def test_exchanged_runs_of_an_object_are_found_by_every_reader(archive: ArchiveOfTest) -> None:
    rows = rows_of(archive)
    path, size = path_of(archive, rows[0]), 2 * BATCH_BYTES
    content = path.read_bytes()
    path.write_bytes(content[size : 2 * size] + content[:size] + content[2 * size :])
    for read in EVERY:
        for start in (0, 7):
            refuses(lambda read=read, at=start: read(archive, rows, at, at + 1))  # type: ignore[misc]
        read(archive, rows, 13, 14)


@pytest.mark.parametrize("kept", [0, 1, BATCH_BYTES, 3 * BATCH_BYTES, 6 * BATCH_BYTES - 1])
def test_a_truncated_object_is_found_by_every_reader(archive: ArchiveOfTest, kept: int) -> None:
    rows = rows_of(archive)
    path = path_of(archive, rows[0])
    path.write_bytes(path.read_bytes()[:kept])
    for read in EVERY:
        refuses(lambda read=read: read(archive, rows, 17, 18))  # type: ignore[misc]


@pytest.mark.parametrize("at", [0, 1, BATCH_BYTES, 3 * BATCH_BYTES])
def test_bytes_that_were_inserted_are_found_by_every_reader(archive: ArchiveOfTest, at: int) -> None:
    rows = rows_of(archive)
    path = path_of(archive, rows[0])
    content = path.read_bytes()
    path.write_bytes(content[:at] + batch_at(0) + content[at:])
    for read in EVERY:
        refuses(lambda read=read: read(archive, rows, 17, 18))  # type: ignore[misc]


def test_an_object_of_another_archive_under_the_same_name_is_found_by_every_reader(
    archive: ArchiveOfTest, tmp_path: Path
) -> None:
    rows = rows_of(archive)
    other = ArchiveOfTest(archive_config(tmp_path / "other"))
    (of_other,) = other.archive({ORDERS: [batch_at(offset, b"wrong") for offset in range(0, BATCHES * RECORDS, RECORDS)]})
    shutil.copy(path_of(other, of_other), path_of(archive, rows[0]))
    for read in EVERY:
        refuses(lambda read=read: read(archive, rows, 7, 8))  # type: ignore[misc]


def test_rows_without_checksums_of_runs_are_compared_as_a_whole_before_a_part_of_them_is_used(archive: ArchiveOfTest) -> None:
    rows = older(rows_of(archive))
    for read in DECIDING:
        read(archive, rows, 7, 8)
    path = path_of(archive, rows[0])
    content = path.read_bytes()
    for pos in range(0, 6 * BATCH_BYTES, 7):
        damaged = bytearray(content)
        damaged[pos] ^= 1
        path.write_bytes(damaged)
        for read in DECIDING:
            old_rows._known.clear()
            problem = refuses(lambda read=read: read(archive, rows, 7, 8))  # type: ignore[misc]
            assert "byte 0: the checksum of all its batches of this partition does not match; offsets 0 to 17" in problem
    path.write_bytes(content)
    exchange(path, path_of(archive, rows[1]))
    for read in DECIDING:
        refuses(lambda read=read: read(archive, rows, 7, 8))  # type: ignore[misc]


def test_an_older_row_is_read_as_a_whole_once_and_its_runs_are_compared_from_then_on(archive: ArchiveOfTest) -> None:
    rows = older(rows_of(archive))
    assert restored(archive, rows, 0, 6) == [batch_at(0) + batch_at(3)]
    path = path_of(archive, rows[0])
    content = bytearray(path.read_bytes())
    content[4 * BATCH_BYTES] ^= 1
    path.write_bytes(content)
    assert restored(archive, rows, 6, 12) == [batch_at(6) + batch_at(9)]
    assert "offsets 12 to 17 of orders-0" in refuses(lambda: restored(archive, rows, 12, 18))


def test_lookups_in_older_rows_trust_offsets_and_say_so_once(archive: ArchiveOfTest, caplog: pytest.LogCaptureFixture) -> None:
    rows = older(rows_of(archive))
    path = path_of(archive, rows[0])
    content = path.read_bytes()

    def read(start: int, end: int) -> list[int]:
        reader = SegmentReader(archive.store, rows, start, end, trusts_old_offsets=True)
        return [int(base) for part in reader for base in part.index.headers["base_offset"]]

    with caplog.at_level(logging.WARNING, old_rows.__name__):
        assert read(7, 8) == [6]
        assert read(0, 18) == [0, 3, 6, 9, 12, 15]
    (message,) = caplog.messages
    assert message.startswith(f"archive {archive.owner.map_id}: objects of format 1.0 have no checksums for parts of them")
    damaged = bytearray(content)
    damaged[3 * BATCH_BYTES + 70] ^= 1
    path.write_bytes(damaged)
    assert "the checksum of the batch at offset 9 does not match" in refuses(lambda: read(7, 8))
    damaged = bytearray(content)
    damaged[12] ^= 1  # the leader epoch
    path.write_bytes(damaged)
    assert read(0, 1) == [0]
    assert "the checksum of all its batches" in refuses(lambda: read(0, 18))


def test_a_row_with_too_few_checksums_is_refused(archive: ArchiveOfTest) -> None:
    row = rows_of(archive)[0]
    assert row.stored is not None
    short = replace(row, stored=replace(row.stored, run_crc32c=(1, 2)))
    assert "2 checksums for 3 runs" in refuses(lambda: restored(archive, [short], 0, 1))
