"""Records of archived batches: opened by every codec, with what consumers see, cut at the bounds of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.archives import ORDERS, SmallArchive
from tests.support.record_batches import batch, marker, record
from tests.support.record_encoders import ENCODERS, every_codec, full_record, plain

from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import OpenedRecord, open_records
from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.errors import ArchiveFormatError, BatchRefusedError, CorruptBatchError

TRANSACTIONAL, APPEND_TIME = 0x10, 0x08
NO_BOUNDS = ReadBounds()


@pytest.fixture
def archive(tmp_path: Path) -> SmallArchive:
    return SmallArchive(tmp_path)


def opened(archive: SmallArchive, bounds: ReadBounds = NO_BOUNDS, **options: bool | int) -> list[OpenedRecord]:
    parts = SegmentReader(archive.store, archive.rows, bounds.start_offset, bounds.end_offset)
    return [record for part in parts for record in open_records(part, bounds, **options)]  # type: ignore[arg-type]


def offsets(records: Sequence[OpenedRecord]) -> list[int]:
    return [read.record.offset for read in records]


@pytest.mark.slow
@every_codec
def test_batches_of_every_codec_are_opened(archive: SmallArchive, name: str) -> None:
    codec, encode = ENCODERS[name]
    block = b"".join(record(delta, b"k%d" % delta, b"value " * 20) for delta in range(5))
    archive.add_object([{ORDERS: batch(0, 5, attributes=codec, payload=encode(block))}])
    read = opened(archive)
    assert [(plain(each.record.key), plain(each.record.value)) for each in read] == [
        (b"k%d" % delta, b"value " * 20) for delta in range(5)
    ]
    assert offsets(read) == [0, 1, 2, 3, 4]


def test_null_empty_headers_and_timestamps_are_as_written(archive: SmallArchive) -> None:
    payload = full_record(0, 7, None, b"", [(b"h", None), (b"h", b"x")]) + full_record(1, -3, b"", None, [])
    archive.add_object([{ORDERS: batch(0, 2, payload=payload, timestamp=1_000, max_timestamp=1_007)}])
    first, second = (each.record for each in opened(archive))
    assert (plain(first.key), plain(first.value), first.timestamp_ms) == (None, b"", 1_007)
    assert [(bytes(name), plain(value)) for name, value in first.headers] == [(b"h", None), (b"h", b"x")]
    assert (plain(second.key), plain(second.value), second.timestamp_ms) == (b"", None, 997)


def test_records_of_a_log_append_time_batch_have_its_time_and_type(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 2, attributes=APPEND_TIME, timestamp=1_000, max_timestamp=9_000) + batch(2, 1)}])
    assert [(each.record.timestamp_ms, each.timestamp_type) for each in opened(archive)] == [(9_000, 1), (9_000, 1), (1_000, 0)]


@pytest.fixture
def transactions(archive: SmallArchive) -> SmallArchive:
    """Aborted data of producer 7, then a committed transaction of it; one of producer 8 that ends in the next row."""

    def data(offset: int, producer_id: int) -> bytes:
        return batch(offset, 2, attributes=TRANSACTIONAL, producer_id=producer_id)

    archive.add_object(
        [{ORDERS: data(0, 7) + data(2, 8) + marker(4, 0, 7) + data(5, 7) + marker(7, 1, 7) + batch(8, 2)}],
        aborted={ORDERS: [(7, 0), (8, 2)]},
    )
    archive.add_object([{ORDERS: data(10, 8) + marker(12, 0, 8) + data(13, 8) + marker(15, 1, 8)}], aborted={ORDERS: [(8, 2)]})
    return archive


def test_aborted_and_control_records_are_left_out(transactions: SmallArchive) -> None:
    assert offsets(opened(transactions)) == [5, 6, 8, 9, 13, 14]


def test_they_are_read_on_request_and_their_kind_says_what_they_are(transactions: SmallArchive) -> None:
    read = opened(transactions, includes_aborted=True)
    assert offsets(read) == list(range(16))
    kinds = {each.record.offset: str(each.kind) for each in read}
    assert {offset for offset, kind in kinds.items() if kind == "aborted"} == {0, 1, 2, 3, 10, 11}
    assert (kinds[4], kinds[7], kinds[12], kinds[15]) == ("abort", "commit", "abort", "commit")


def test_records_below_the_start_of_the_row_and_behind_its_end_are_no_part_of_it(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 10) + batch(10, 10)}], starts={ORDERS: 4}, ends={ORDERS: 17})
    assert offsets(opened(archive)) == list(range(4, 17))


def test_bounds_of_offsets_and_times_hold_for_single_records(archive: SmallArchive) -> None:
    payload = b"".join(full_record(delta, 10 * delta, None, b"v", []) for delta in range(10))
    archive.add_object([{ORDERS: batch(0, 10, payload=payload, timestamp=0, max_timestamp=90)}])
    assert offsets(opened(archive, ReadBounds(start_offset=3, end_offset=5))) == [3, 4]
    assert offsets(opened(archive, ReadBounds(min_timestamp_ms=35, max_timestamp_ms=60))) == [4, 5, 6]


def test_holes_of_compaction_and_emptied_batches_have_no_records(archive: SmallArchive) -> None:
    empty = batch(10, 0, deltas=[], last_offset_delta=4)
    archive.add_object([{ORDERS: batch(0, deltas=[2, 7], last_offset_delta=9) + empty + batch(20, 1)}])
    assert offsets(opened(archive)) == [2, 7, 20]


def test_a_batch_of_an_unknown_codec_names_its_object(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 1, attributes=7)}])
    with pytest.raises(ArchiveFormatError, match=r"0000000001-0000-00-0123abcd.*orders-0 at offset 0 cannot be read: unknown"):
        opened(archive)


def test_damage_from_before_the_archive_names_the_object_and_how_to_read_the_bytes(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 1, payload=b"\x20nonsense")}])
    with pytest.raises(CorruptBatchError, match=r"archived like this \(object backup/.*records = false reads it"):
        opened(archive)


def test_a_batch_that_would_take_too_much_memory_is_refused_with_the_option_to_change(archive: SmallArchive) -> None:
    codec, encode = ENCODERS["gzip"]
    archive.add_object([{ORDERS: batch(0, 1, attributes=codec, payload=encode(record(0, None, bytes(100_000))))}])
    with pytest.raises(BatchRefusedError, match=r"more than 1000 bytes.*maxOpenedBytes"):
        opened(archive, most_opened_bytes=1_000)
