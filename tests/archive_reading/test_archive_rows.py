"""Arrow rows of archived batches and records: their columns, and how much one arrow batch holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.archives import ORDERS, SmallArchive
from tests.support.record_batches import batch, marker, record
from tests.support.record_encoders import full_record

from shallow_mirror.archive_reading import archive_rows
from shallow_mirror.archive_reading.archive_rows import RECORD_SCHEMA, batch_rows, record_rows
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.broker.fetch.arrow_rows import ARROW_SCHEMA

TRANSACTIONAL = 0x10


@pytest.fixture
def archive(tmp_path: Path) -> SmallArchive:
    return SmallArchive(tmp_path)


def records_of(archive: SmallArchive) -> list[pa.RecordBatch]:
    return list(record_rows(SegmentReader(archive.store, archive.rows), ReadBounds()))


def test_batches_without_offsets_between_them_and_with_their_bytes(archive: SmallArchive) -> None:
    first, second = batch(0, 2), batch(10, 2)
    archive.add_object([{ORDERS: first + second}], ends={ORDERS: 20})
    (part,) = SegmentReader(archive.store, archive.rows)
    rows = pa.Table.from_batches(list(batch_rows(part)))
    assert rows.schema == ARROW_SCHEMA.append(pa.field("lineage", pa.int32()))
    assert rows["base_offset"].to_pylist() == [0, 10]
    assert rows["payload"].to_pylist() == [first, second]


def test_emptied_and_aborted_batches_and_markers_have_rows_on_request(archive: SmallArchive) -> None:
    aborted = batch(0, 2, attributes=TRANSACTIONAL, producer_id=7)
    empty = batch(3, 0, deltas=[], last_offset_delta=4)
    archive.add_object([{ORDERS: aborted + marker(2, 0, 7) + empty + batch(8, 1)}], aborted={ORDERS: [(7, 0)]})
    (part,) = SegmentReader(archive.store, archive.rows)

    def kinds(*, includes_aborted: bool) -> list[str]:
        return [kind for rows in batch_rows(part, includes_aborted=includes_aborted) for kind in rows.column("kind").to_pylist()]

    assert kinds(includes_aborted=False) == ["data"]
    assert kinds(includes_aborted=True) == ["aborted", "abort", "gap", "data"]


def test_a_batch_that_begins_below_its_row_is_a_row_as_a_whole(archive: SmallArchive) -> None:
    archive.add_object([{ORDERS: batch(0, 10) + batch(10, 1)}], starts={ORDERS: 4})
    (part,) = SegmentReader(archive.store, archive.rows)
    (rows,) = batch_rows(part)
    assert rows.column("base_offset").to_pylist() == [0, 10]


def test_an_arrow_batch_is_full_with_so_many_records_or_bytes(archive: SmallArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    archive.add_object(
        [{ORDERS: batch(0, 25)}, {ORDERS: batch(25, 3, payload=b"".join(record(i, None, bytes(900)) for i in range(3)))}]
    )
    monkeypatch.setattr(archive_rows, "MOST_ARROW_RECORDS", 10)
    assert [len(rows) for rows in records_of(archive)] == [10, 10, 8]
    monkeypatch.setattr(archive_rows, "MOST_ARROW_BYTES", 1_000)
    assert [len(rows) for rows in records_of(archive)] == [10, 10, 6, 2]
    assert all(rows.schema == RECORD_SCHEMA for rows in records_of(archive))


def test_times_that_spark_cannot_hold_are_null_and_names_of_headers_are_always_text(archive: SmallArchive) -> None:
    payload = full_record(0, 0, None, None, [(b"\xff", b"x")])
    archive.add_object([{ORDERS: batch(0, 1, payload=payload, timestamp=(1 << 63) - 1)}])
    (rows,) = records_of(archive)
    row = rows.to_pylist()[0]
    assert (row["timestamp"], row["key"], row["value"]) == (None, None, None)
    assert row["headers"] == [{"key": "\ufffd", "value": b"x"}]
