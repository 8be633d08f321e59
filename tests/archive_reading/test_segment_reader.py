"""The batches of a partition come back whole, in order, from the ranges that hold them and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.archives import ORDERS, OTHER, SmallArchive
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_format import INDEX_BYTES, AbortedTxn
from shallow_mirror.archive_reading import segment_reader
from shallow_mirror.archive_reading.segment_reader import SegmentReader, aborted_between
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.errors import ArchiveFormatError, ObjectMissingError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.sinks.archive import object_builder
from shallow_mirror.wire import crc32c

TRANSACTIONAL = 0x10


@pytest.fixture
def archive(tmp_path: Path) -> SmallArchive:
    return SmallArchive(tmp_path)


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index entries of about 100 bytes, parts of 400, windows of 300: everything of a large object in a small one."""
    monkeypatch.setattr(object_builder, "INDEX_BYTES", 100)
    monkeypatch.setattr(object_builder, "PART_BYTES", 400)
    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", 300)


def read(store: ObjectStore, rows: list[DecidedSegment], start: int = 0, end: int = 1 << 62, **options: Any) -> list[int]:
    """Return the base offsets of the batches that are read, in the order in which they come."""
    return [int(base) for part in SegmentReader(store, rows, start, end, **options) for base in part.index.headers["base_offset"]]


def of(archive: SmallArchive, source: object = ORDERS) -> list[DecidedSegment]:
    return [row for row in archive.rows if row.segment.source == source]


def interleaved(archive: SmallArchive, batches: int = 30) -> list[bytes]:
    """Archive batches of two partitions, three a response; return those of ORDERS: 10 offsets each."""
    mine = [batch(10 * i, 10, timestamp=1_000 * i, max_timestamp=1_000 * i + 9) for i in range(batches)]
    responses = [{ORDERS: b"".join(mine[i : i + 3]), OTHER: batch(i, 1)} for i in range(0, batches, 3)]
    archive.add_object(responses)
    return mine


@pytest.mark.usefixtures("small_runs")
def test_all_batches_come_back_in_order_and_byte_for_byte(archive: SmallArchive) -> None:
    mine = interleaved(archive)
    parts = list(SegmentReader(archive.store, of(archive)))
    assert b"".join(bytes(part.records) for part in parts) == b"".join(mine)
    assert len(parts) > 3
    for part in parts:
        assert part.source == ORDERS
        assert not part.records.readonly
        assert [int(size) for size in part.index.size_bytes] == [len(part.batch(i)) for i in range(len(part.index))]
        assert sum(part.index.size_bytes) == len(part.records)
    others = list(SegmentReader(archive.store, of(archive, OTHER)))
    assert sum(len(part.index) for part in others) == 10


def test_segments_of_several_objects_follow_each_other_whatever_their_order(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 10)}])
    archive.add_gap(ORDERS, 10, 20)
    archive.add_object([{ORDERS: batch(20, 10)}])
    assert read(archive.store, of(archive)[::-1]) == [0, 20]


def test_segments_of_two_partitions_are_refused(archive: SmallArchive) -> None:
    interleaved(archive)
    with pytest.raises(ValueError, match="several partitions"):
        SegmentReader(archive.store, archive.rows)


@pytest.mark.slow
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize(("start", "end"), [(0, 1), (5, 6), (95, 105), (100, 110), (109, 111), (290, 300), (300, 400)])
def test_a_range_reads_its_batches_and_only_the_runs_that_hold_them(archive: SmallArchive, start: int, end: int) -> None:
    mine = interleaved(archive)
    store = archive.store
    wanted = [10 * i for i in range(len(mine)) if 10 * i < end and 10 * i + 10 > start]
    assert read(store, of(archive), start, end) == wanted
    (row,) = of(archive)
    assert row.stored is not None
    runs = row.stored.index
    bounds = [run.start_offset for run in runs] + [row.segment.source_end]
    needed = {
        (run.position, run.size_bytes)
        for run, behind in zip(runs, bounds[1:], strict=True)
        if run.start_offset < end and behind > start
    }
    assert {(position, size) for _, position, size in store.reads} == needed


@pytest.mark.usefixtures("small_runs")
def test_runs_whose_records_are_all_older_are_not_read(archive: SmallArchive) -> None:
    interleaved(archive)
    store = archive.store
    bases = read(store, of(archive), min_timestamp_ms=25_000)
    assert bases[0] in (240, 250)
    assert bases[-1] == 290
    assert len(store.reads) < 6


def test_records_below_and_behind_the_row_are_named_but_not_cut(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 10) + batch(10, 10)}], starts={ORDERS: 4}, ends={ORDERS: 17})
    (part,) = SegmentReader(archive.store, of(archive))
    assert (part.start, part.end) == (4, 17)
    assert part.index.headers["base_offset"].tolist() == [0, 10]


@pytest.mark.usefixtures("small_runs")
def test_aborted_transactions_are_listed_only_with_the_batches_they_reach(archive: SmallArchive) -> None:
    def data(offset: int, producer_id: int) -> bytes:
        return batch(offset, 10, attributes=TRANSACTIONAL, producer_id=producer_id)

    first = data(0, 7) + data(10, 8) + marker(20, 0, 7) + data(21, 8) + data(31, 7) + marker(41, 1, 7)
    later = b"".join(data(42 + 10 * i, 9) for i in range(6))
    archive.add_object([{ORDERS: first}, {ORDERS: later}], aborted={ORDERS: [(7, 0), (8, 10)]})
    listed = [(int(part.index.headers["base_offset"][0]), part.aborted) for part in SegmentReader(archive.store, of(archive))]
    assert listed[0] == (0, ((7, 0), (8, 10)))
    assert all(aborted == ((8, 10),) for base, aborted in listed if base > 20)
    assert len(listed) > 2


def test_a_transaction_without_a_marker_reaches_to_the_end_of_its_row() -> None:
    aborted = [AbortedTxn(7, 5, 9), AbortedTxn(8, 5, None)]
    assert aborted_between(aborted, 0, 4) == ()
    assert aborted_between(aborted, 0, 5) == ((7, 5), (8, 5))
    assert aborted_between(aborted, 9, 20) == ((7, 5), (8, 5))
    assert aborted_between(aborted, 10, 20) == ((8, 5),)


def older(archive: SmallArchive) -> list[DecidedSegment]:
    """Return the rows of ORDERS as format 1.0 had them."""
    return [replace(row, stored=replace(row.stored, run_crc32c=None)) for row in of(archive) if row.stored is not None]


def damaged(archive: SmallArchive, position: int, content: bytes) -> None:
    (row,) = of(archive)
    assert row.stored is not None
    path = archive.objects / row.stored.object_name
    data = bytearray(path.read_bytes())
    data[position : position + len(content)] = content
    path.write_bytes(bytes(data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "content", "detail"),
    [
        (len(batch(0, 10)) + 70, b"\xff", "byte 134: the checksum of the batch at offset 10 does not match"),
        (len(batch(0, 10)) + 8, b"\x00\x00\x00\x01", "there is no record batch"),
        (len(batch(0, 10)) + 16, b"\x01", r"there is no record batch \(magic 1\)"),
        (len(batch(0, 10)), (3).to_bytes(8, "big"), "the offsets of the batches do not rise"),
        (0, (3).to_bytes(8, "big"), "byte 0: the batch has base offset 3, the index says 0"),
        (12, b"\x7f", "the checksum of all its batches of this partition does not match"),
    ],
)
def test_a_damaged_object_is_named_with_the_byte_the_offsets_and_a_remedy(
    archive: SmallArchive, position: int, content: bytes, detail: str
) -> None:
    archive.add_object([{ORDERS: batch(0, 10) + batch(10, 10)}])
    detail = detail.replace("byte 134", f"byte {len(batch(0, 10))}")
    damaged(archive, position, content)
    with pytest.raises(ArchiveFormatError, match=detail) as raised:
        list(SegmentReader(archive.store, older(archive), trusts_old_offsets=True))
    with pytest.raises(ArchiveFormatError, match=f"byte 0: the checksum of the {2 * len(batch(0, 10))} bytes from there"):
        list(SegmentReader(archive.store, of(archive)))
    assert raised.value.object_name == "backup/00000001/0000000001-0000-00-0123abcd.batches"
    assert "offsets 0 to 19 of orders-0" in str(raised.value)
    assert "Restore the object" in str(raised.value)


def test_exchanged_batches_are_found_although_each_is_whole(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 10, timestamp=1) + batch(10, 10)}])
    damaged(archive, 0, batch(0, 10, timestamp=2))
    with pytest.raises(ArchiveFormatError, match="the checksum of the"):
        list(SegmentReader(archive.store, of(archive)))
    with pytest.raises(ArchiveFormatError, match="the checksum of all its batches"):
        list(SegmentReader(archive.store, older(archive), trusts_old_offsets=True))


def test_a_batch_that_was_archived_damaged_is_refused_by_those_who_open_it(archive: SmallArchive) -> None:
    content = bytearray(batch(0, 10))
    content[70] ^= 0xFF
    archive.add_object([{ORDERS: bytes(content)}])
    (part,) = SegmentReader(archive.store, of(archive), verifies_batches=False)
    assert bytes(part.records) == content
    with pytest.raises(ArchiveFormatError, match="the checksum of the batch at offset 0 does not match"):
        list(SegmentReader(archive.store, of(archive)))


def test_a_missing_object_is_named(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 10)}])
    (row,) = of(archive)
    assert row.stored is not None
    (archive.objects / row.stored.object_name).unlink()
    with pytest.raises(ObjectMissingError, match=row.stored.object_name):
        list(SegmentReader(archive.store, of(archive)))


@pytest.mark.usefixtures("small_runs")
def test_reads_are_ahead_by_so_many_bytes_at_most(archive: SmallArchive) -> None:
    interleaved(archive)
    store = archive.store
    reader = iter(SegmentReader(store, of(archive), read_ahead_bytes=600))
    held = len(next(reader).records)
    assert sum(size for _, _, size in store.reads) <= held + 600 + 300
    reader.close()
    count = len(store.reads)
    assert count < len(of(archive)[0].stored.index)  # type: ignore[union-attr]


def test_a_run_larger_than_a_window_is_read_as_one(archive: SmallArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", 10)
    archive.add_object([{ORDERS: batch(0, 10) + batch(10, 10)}])
    assert read(archive.store, of(archive), read_ahead_bytes=1) == [0, 10]
    assert len(batch(0, 10)) < INDEX_BYTES


def test_an_index_that_points_into_a_batch_is_found(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 10) + batch(10, 10)}])
    (row,) = of(archive)
    stored = row.stored
    assert stored is not None
    entry = stored.index[0]
    broken = (replace(entry, size_bytes=70), replace(entry, start_offset=10, position=70, size_bytes=entry.size_bytes - 70))
    content = (archive.objects / stored.object_name).read_bytes()
    crcs = tuple(crc32c(content[run.position : run.position + run.size_bytes]) for run in broken)
    with pytest.raises(ArchiveFormatError, match="does not begin with a batch"):
        list(SegmentReader(archive.store, [replace(row, stored=replace(stored, index=broken, run_crc32c=crcs))]))
