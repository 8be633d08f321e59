"""The columns of the offset map are those of the design, and rows survive the way through Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.checkpoints.logs import group_offset_history, quarantined_batches as batches
from shallow_mirror.checkpoints.logs.runs import run_history, verify_log
from shallow_mirror.checkpoints.rows import paused_intervals, problems, schema
from shallow_mirror.checkpoints.rows.codec import RowCodec
from shallow_mirror.checkpoints.rows.schema import (
    OFFSET_MAP,
    DecidedSegment,
    in_source_order,
    rows_from_arrow,
    rows_to_arrow,
)
from shallow_mirror.checkpoints.tables import OFFSET_MAP_LAYOUT
from shallow_mirror.checkpoints.tables.backends.spark_sql import columns_in_sql
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

_longs = st.integers(0, (1 << 63) - 1)
_ints = st.integers(0, (1 << 31) - 1)
_names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=5)

segments = st.builds(
    Segment,
    source=st.builds(SourcePartition, _names, _names, _ints),
    source_start=_longs,
    source_end=_longs,
    kind=st.sampled_from(SegmentKind),
    target=st.builds(TargetPartition, _names, _names, _ints),
    target_start=st.none() | _longs,
    target_end=st.none() | _longs,
    record_count=_longs,
    batch_count=_ints,
    rebuilt_batch_count=_ints,
    size_bytes=_longs,
    max_timestamp_ms=st.none() | st.integers(-1, (1 << 63) - 1),
    source_leader_epoch=st.none() | _ints,
    source_producer_id=st.none() | _longs,
    source_producer_epoch=st.none() | _ints,
    coordinator_epoch=st.none() | _ints,
)
rows = st.builds(DecidedSegment, segments, st.none() | st.builds(SlotTxn, _names, _longs, _ints))


@pytest.mark.slow
@given(st.lists(rows, max_size=6))
def test_rows_survive_the_way_through_arrow_and_come_back_in_source_order(written: list[DecidedSegment]) -> None:
    table = rows_to_arrow(written, 3, 17, 1_700_000_000_123)
    assert table.schema == OFFSET_MAP
    assert list(rows_from_arrow(table)) == sorted(written, key=in_source_order)
    assert set(table.column("run_epoch").to_pylist()) <= {3}
    assert set(table.column("micro_batch").to_pylist()) <= {17}


def test_only_types_that_every_delta_reader_knows_are_used() -> None:
    assert {str(field.type) for field in OFFSET_MAP} == {"string", "int32", "int64", "timestamp[us, tz=UTC]"}


def test_a_missing_or_changed_column_is_named_and_a_further_one_is_welcome() -> None:
    columns = [(field.name, str(field.type)) for field in OFFSET_MAP]
    assert OFFSET_MAP_LAYOUT.column_problems([*columns, ("remark", "string")]) == []
    assert OFFSET_MAP_LAYOUT.column_problems(columns[1:]) == ["column source_topic: missing, expected string"]
    assert OFFSET_MAP_LAYOUT.column_problems(
        [("kind", "int32") if name == "kind" else (name, kind) for name, kind in columns]
    ) == ["column kind: int32, expected string"]


@pytest.mark.parametrize(
    "module",
    [verify_log, paused_intervals, group_offset_history, run_history, problems, batches, schema],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_every_table_can_be_created_through_spark(module: object) -> None:
    values = (value.schema if isinstance(value, RowCodec) else value for value in vars(module).values())
    schemas = [value for value in values if isinstance(value, pa.Schema)]
    assert schemas
    for table_schema in schemas:
        assert columns_in_sql(table_schema).count("`") == 2 * len(table_schema)
