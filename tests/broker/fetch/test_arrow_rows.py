from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.examples import examples
from tests.support.record_batches import batch, marker, view

from shallow_mirror.broker.fetch import IndexedPartition
from shallow_mirror.broker.fetch.arrow_rows import FAILED, Keep, RangeRows, failed_row, parse_rows, split_failures
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, SegmentKind, SourcePartition
from shallow_mirror.wire.batches import index_batches

SOURCE = SourcePartition("orders", "id", 3)
LIMITS = BatchLimits(
    max_message_bytes=1 << 30, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
)


def response(*batches: bytes, aborted: tuple[tuple[int, int], ...] = (), log_start_offset: int = 0) -> IndexedPartition:
    records = view(*batches)
    return IndexedPartition(SOURCE.topic_partition, index_batches(records), records, aborted, log_start_offset, 99, 99, 0)


def rows_of(
    fetched: Sequence[IndexedPartition], start: int, end: int, *, keep: Keep = Keep.ALL, limits: BatchLimits = LIMITS
) -> list[pa.RecordBatch]:
    follower = RangeRows(SOURCE, start, end, limits=limits, keep=keep)
    made = [_copied(row) for response in fetched for row in follower.of_answer(response)]
    return made + [_copied(row) for row in follower.up_to(end)]


def _copied(arrow_batch: pa.RecordBatch) -> pa.RecordBatch:
    """As it arrives on the other side of a process."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_batch.schema) as writer:
        writer.write_batch(arrow_batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def table(arrow_batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for arrow_batch in arrow_batches for row in arrow_batch.to_pylist()]


def test_a_row_holds_every_header_field_what_a_mirror_would_do_and_the_bytes() -> None:
    raw = batch(5, 3, attributes=0x14, producer_id=7, producer_epoch=2, base_sequence=9, leader_epoch=4, timestamp=1234)
    ((row,),) = ([*table(rows_of([response(raw)], 5, 8))],)
    crc = int.from_bytes(raw[17:21], "big")
    assert row == {
        "topic": "orders",
        "topic_id": "id",
        "partition": 3,
        "base_offset": 5,
        "last_offset": 7,
        "kind": "data",
        "verdict": "raw",
        "reason": None,
        "size_bytes": len(raw),
        "records_count": 3,
        "codec": "zstd",
        "timestamp_type": "CreateTime",
        "is_transactional": True,
        "is_control": False,
        "has_delete_horizon": False,
        "leader_epoch": 4,
        "magic": 2,
        "crc": crc,
        "last_offset_delta": 2,
        "base_timestamp_ms": 1234,
        "max_timestamp_ms": 1234,
        "producer_id": 7,
        "producer_epoch": 2,
        "base_sequence": 9,
        "coordinator_epoch": None,
        "payload": raw,
    }


def test_markers_aborted_data_holes_and_refusals_have_rows_only_where_all_are_asked_for() -> None:
    parts = [
        batch(0, 2),
        batch(4, 1, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0),
        marker(5, 0, 9),
        batch(6, 2, attributes=0x08),
    ]
    fetched = [response(*parts, aborted=((9, 4),))]
    every = table(rows_of(fetched, 0, 10))
    assert [(row["kind"], row["base_offset"], row["last_offset"]) for row in every] == [
        ("data", 0, 1),
        ("gap", 2, 3),
        ("aborted", 4, 4),
        ("abort", 5, 5),
        ("data", 6, 7),
        ("gap", 8, 9),
    ]
    assert [row["payload"] for row in every] == [parts[0], None, parts[1], parts[2], parts[3], None]
    assert every[3]["coordinator_epoch"] == 5
    assert every[4]["verdict"] == "rebuild"
    assert "LogAppendTime" in str(every[4]["reason"])
    committed = table(rows_of(fetched, 0, 10, keep=Keep.COMMITTED))
    assert [(row["kind"], row["payload"]) for row in committed] == [("data", parts[0]), ("data", parts[3])]


def test_a_batch_belongs_to_the_range_that_holds_its_base_offset() -> None:
    fetched = response(batch(0, 4), batch(4, 4))
    first, second = table(rows_of([fetched], 0, 6)), table(rows_of([fetched], 6, 8))
    assert [(row["base_offset"], row["last_offset"]) for row in first] == [(0, 3), (4, 7)]
    assert second == []


def test_a_batch_into_which_the_log_start_was_moved_belongs_to_the_first_range() -> None:
    ((row,),) = (table(rows_of([response(batch(0, 4), log_start_offset=2)], 2, 4)),)
    assert (row["base_offset"], row["verdict"]) == (0, "rebuild")
    assert "straddles" in str(row["reason"])


def test_expired_offsets_have_a_row_of_their_own() -> None:
    follower = RangeRows(SOURCE, 0, 9, limits=LIMITS, keep=Keep.ALL)
    ((row,),) = (table(list(follower.up_to(6, SegmentKind.EXPIRED))),)
    assert (row["kind"], row["base_offset"], row["last_offset"], row["payload"]) == ("expired", 0, 5, None)


def test_an_error_travels_as_a_row() -> None:
    row = failed_row(SOURCE, 7, b"pickled")
    assert row.to_pylist()[0]["kind"] == FAILED
    _, failures = split_failures(row)
    assert failures == [b"pickled"]
    rows = rows_of([response(batch(0))], 0, 1)[0]
    assert split_failures(rows) == (rows, [])
    together = pa.Table.from_batches([rows, row, rows]).combine_chunks().to_batches()[0]
    kept, failures = split_failures(together)
    assert failures == [b"pickled"]
    assert [len(run.records) for run in parse_rows(kept)] == [2 * len(batch(0))]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytes], tuple[tuple[int, int], ...], int]:
    """Batches with holes, two transactional producers that commit or abort; the aborted list a broker would send."""
    offset, parts, aborted = 0, [], []
    opened: dict[int, int] = {}
    for _ in range(draw(st.integers(0, 25))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 5]))
        producer = draw(st.sampled_from([-1, 11, 12]))
        if producer in opened and draw(st.booleans()):
            is_commit = draw(st.booleans())
            first = opened.pop(producer)
            if not is_commit:
                aborted.append((producer, first))
            parts.append(marker(offset, int(is_commit), producer))
            offset += 1
            continue
        count = draw(st.integers(1, 3))
        if producer >= 0:
            opened.setdefault(producer, offset)
            parts.append(batch(offset, count, attributes=0x10, producer_id=producer, producer_epoch=0, base_sequence=0))
        else:
            parts.append(batch(offset, count))
        offset += count
    for producer in opened:  # the last stable offset ends in front of open transactions: end them
        parts.append(marker(offset, 1, producer))
        offset += 1
    return parts, tuple(sorted(aborted, key=lambda aborted_txn: aborted_txn[1])), offset


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(logs(), st.data())
def test_rows_cover_every_offset_and_say_what_the_response_said(
    log: tuple[list[bytes], tuple[tuple[int, int], ...], int], data: st.DataObject
) -> None:
    parts, aborted, end = log
    cuts = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=3)))
    responses = [
        response(*parts[first:last], aborted=aborted) for first, last in zip([0, *cuts], [*cuts, len(parts)], strict=True)
    ]
    arrow_batches = rows_of([response for response in responses if len(response.index)], 0, end + 2)
    reached = 0
    for row in table(arrow_batches):
        assert row["base_offset"] == reached
        reached = int(str(row["last_offset"])) + 1
    assert reached == end + 2
    runs = [run for arrow_batch in arrow_batches for run in parse_rows(arrow_batch)]
    assert b"".join(bytes(run.records) for run in runs) == b"".join(parts)
    assert [run.start for run in runs[1:]] == [run.end for run in runs[:-1]]
    kinds = [row["kind"] for row in table(arrow_batches)]
    second_rows: list[object] = []
    position = 0
    for run in runs:
        fetched = IndexedPartition(SOURCE.topic_partition, index_batches(run.records), run.records, run.aborted, 0, 99, 99, 0)
        follower = RangeRows(SOURCE, position, run.end, limits=LIMITS, keep=Keep.ALL)
        second_rows += [row["kind"] for row in table([*follower.of_answer(fetched), *follower.up_to(run.end)])]
        position = run.end
    assert second_rows == kinds
