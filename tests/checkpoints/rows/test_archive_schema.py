"""Rows of an archive and its Arrow columns; positions that are read from them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from tests.archive_format.archived_rows import SOURCE, archived_segments, data, gap

from shallow_mirror.archive_format import ArchivedSegment
from shallow_mirror.checkpoints import DecidedSegment, in_source_order
from shallow_mirror.checkpoints.rows.archive_schema import (
    ARCHIVE_POSITION_COLUMNS,
    ARCHIVE_SEGMENTS,
    SegmentState,
    archive_positions_of,
    archive_rows_from_arrow,
    archive_rows_to_arrow,
)
from shallow_mirror.checkpoints.rows.positions import moved_by
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP
from shallow_mirror.types import EpochEnd, SegmentKind, TargetPartition


def decided(row: ArchivedSegment) -> DecidedSegment:
    return DecidedSegment(row.segment, None, row.stored)


def table_of(*rows: ArchivedSegment) -> pa.Table:
    return archive_rows_to_arrow([decided(row) for row in rows], run_epoch=3, micro_batch=7, decided_at_ms=1_700_000_000_123)


@pytest.mark.slow
@given(st.lists(archived_segments(), max_size=4))
def test_rows_are_read_back_in_the_order_of_offsets(rows: list[ArchivedSegment]) -> None:
    expected = sorted((decided(row) for row in rows), key=in_source_order)
    assert sorted(archive_rows_from_arrow(table_of(*rows)), key=repr) == sorted(expected, key=repr)
    assert [in_source_order(row) for row in archive_rows_from_arrow(table_of(*rows))] == [
        in_source_order(row) for row in expected
    ]


def test_a_decision_appends_finished_copies() -> None:
    (row,) = table_of(data(5, 20)).to_pylist()
    assert row["state"] == SegmentState.COPY_SEGMENT_FINISHED == "COPY_SEGMENT_FINISHED"
    assert (row["run_epoch"], row["micro_batch"], row["decided_at"].timestamp()) == (3, 7, 1_700_000_000.123)
    assert row["leader_epochs"] == [{"leader_epoch": 3, "start_offset": 5}]
    assert row["aborted"][1] == {"producer_id": 8, "first_offset": 5, "last_offset": 19}
    assert row["index"] == [{"start_offset": 5, "position": 0, "size_bytes": 100, "max_timestamp_ms": 1_000}]


def test_a_row_without_batches_has_no_object() -> None:
    (row,) = table_of(gap(5, 20)).to_pylist()
    assert row["kind"] == "gap"
    assert {row[name] for name in ("object_name", "crc32c", "retention_class", "min_timestamp_ms")} == {None}


def test_columns_of_the_same_name_have_the_type_of_the_offset_map() -> None:
    common = set(ARCHIVE_SEGMENTS.names) & set(OFFSET_MAP.names)
    assert {"source_topic", "source_topic_id", "source_partition", "source_start", "source_end", "kind"} <= common
    assert all(ARCHIVE_SEGMENTS.field(name).type == OFFSET_MAP.field(name).type for name in common)


def test_a_position_is_the_end_of_the_last_row_and_its_target_the_partition_itself() -> None:
    table = table_of(data(0, 10), gap(10, 12))
    other = SOURCE._replace(partition=1)
    pieces = [table_of(data(0, 3, other)), table, *table_of(gap(12, 15, kind=SegmentKind.EXPIRED)).to_batches()]
    random.Random(1).shuffle(pieces)
    positions = archive_positions_of(piece.select(ARCHIVE_POSITION_COLUMNS) for piece in pieces)
    assert {source.partition: position.offset for source, position in positions.items()} == {0: 15, 1: 3}
    assert positions[SOURCE].target == TargetPartition(*SOURCE)
    assert positions[SOURCE].epoch_end == EpochEnd(3, 10)
    assert positions[SOURCE].max_timestamp_ms == 1_000
    assert positions[SOURCE].target_end == 10


@pytest.mark.parametrize("last", [data(12, 15), gap(12, 15)])
def test_positions_read_are_those_that_the_rows_moved(last: ArchivedSegment) -> None:
    rows = [data(0, 10), gap(10, 12), last]
    assert archive_positions_of([table_of(*rows)]) == moved_by({}, [decided(row) for row in rows])


def test_no_rows_have_no_positions() -> None:
    assert archive_positions_of([]) == archive_positions_of([table_of()]) == {}
