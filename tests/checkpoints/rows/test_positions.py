"""Positions are those of a look at every row, however the rows come in pieces."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.rows import positions as module
from shallow_mirror.checkpoints.rows.positions import POSITION_COLUMNS, Position, moved_by, positions_of
from shallow_mirror.checkpoints.rows.schema import rows_to_arrow
from shallow_mirror.errors import OffsetMapConflictError
from shallow_mirror.types import EpochEnd, Segment, SegmentKind, SourcePartition, TargetPartition

_ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.none() | st.integers(0, 3), st.none() | st.integers(0, 9), st.booleans()),
    min_size=1,
    max_size=30,
)


def segments(drawn: list[tuple[int, int, int | None, int | None, bool]]) -> list[Segment]:
    """Build a line of offsets for each partition: (partition, length, leader epoch, timestamp, whether it is data)."""
    ends: dict[int, int] = {}
    made = []
    for partition, length, leader_epoch, timestamp_ms, is_data in drawn:
        start = ends.get(partition, 10 * partition)
        ends[partition] = start + length
        source = SourcePartition("orders", f"id{partition % 2}", partition // 2)
        target = TargetPartition("copy", "t", partition)
        segment = Segment(
            source=source, source_start=start, source_end=start + length, kind=SegmentKind.GAP, target=target,
            source_leader_epoch=leader_epoch, max_timestamp_ms=timestamp_ms,
        )  # fmt: skip
        if is_data:
            segment = replace(segment, kind=SegmentKind.DATA, target_start=start + 5, target_end=start + 5 + length)
        made.append(segment)
    return made


def expected(rows: list[Segment]) -> dict[SourcePartition, Position]:
    positions: dict[SourcePartition, Position] = {}
    for row in rows:
        before = positions.get(row.source, Position(0, row.target, start=row.source_start))
        epoch = row.source_leader_epoch
        positions[row.source] = Position(
            row.source_end,
            row.target,
            before.epoch_end if epoch is None else EpochEnd(epoch, row.source_end),
            before.max_timestamp_ms if row.max_timestamp_ms is None else row.max_timestamp_ms,
            max(before.target_end, row.target_end or 0),
            start=before.start,
        )
    return positions


@pytest.mark.thorough
@pytest.mark.parametrize("gathered", [0, 7, 1000])
@given(drawn=_ROWS, chance=st.randoms(use_true_random=False), pieces=st.integers(1, 9))
def test_positions_do_not_depend_on_order_and_pieces(
    gathered: int, drawn: list[tuple[int, int, int | None, int | None, bool]], chance: random.Random, pieces: int
) -> None:
    rows = segments(drawn)
    shuffled = chance.sample(rows, len(rows))
    table = rows_to_arrow([DecidedSegment(segment, None) for segment in shuffled], 1, 1, 0).select(POSITION_COLUMNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GATHERED_ROWS", gathered)
        assert positions_of(table.to_batches(max_chunksize=pieces)) == expected(rows)


def test_no_rows_are_no_positions() -> None:
    empty = pa.table({name: [] for name in POSITION_COLUMNS})
    assert positions_of([]) == positions_of(empty.to_batches()) == {}


def at(start: int, end: int, lineage: int, **fields: Any) -> DecidedSegment:
    source, target = SourcePartition("orders", "id0", 0), TargetPartition("orders", "id0", 0)
    return DecidedSegment(
        Segment(
            source=source, source_start=start, source_end=end, kind=SegmentKind.GAP, target=target, lineage=lineage, **fields
        ),
        None,
    )


def test_a_lineage_begins_at_or_below_the_position_and_takes_nothing_over_but_its_own_epoch() -> None:
    (source, position) = next(iter(moved_by({}, [at(0, 10, 0, source_leader_epoch=3, max_timestamp_ms=5)]).items()))
    moved = moved_by({source: position}, [at(6, 6, 1, source_leader_epoch=2), at(6, 8, 1)])[source]
    assert moved == Position(8, position.target, EpochEnd(2, 6), None, 0, 1, start=6)
    assert moved_by({source: position}, [at(10, 10, 1)])[source] == Position(10, position.target, None, None, 0, 1, start=10)


@pytest.mark.parametrize("row", [at(11, 11, 1), at(6, 8, 1), at(6, 6, 2), at(4, 4, 0)])
def test_no_other_row_moves_a_position_back(row: DecidedSegment) -> None:
    positions = moved_by({}, [at(0, 10, 0)])
    with pytest.raises(OffsetMapConflictError):
        moved_by(positions, [row])
    with pytest.raises(OffsetMapConflictError):
        moved_by({}, [at(0, 0, 1)])


@pytest.mark.parametrize("bound", [1, 1_000])
def test_the_origin_is_the_end_of_what_the_target_held_before_whatever_followed(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHERED_ROWS", bound)
    held, gap, later = segments([(0, 5, None, None, True), (0, 2, None, None, False), (0, 4, None, None, True)])
    (other,) = segments([(1, 3, None, None, True)])
    rows = [
        DecidedSegment(held, None, shared_producer_id=7, is_continued=True),
        DecidedSegment(gap, None, shared_producer_id=7),
        DecidedSegment(later, None, shared_producer_id=7),
        DecidedSegment(other, None, shared_producer_id=8),
    ]
    moved = moved_by({}, rows)
    assert [moved[held.source].origin, moved[other.source].origin] == [5, 0]
    table = rows_to_arrow(rows, 1, 1, 0)
    pieces = [table.slice(at, 1) for at in (3, 1, 0, 2)]
    assert {source: position.origin for source, position in positions_of(pieces).items()} == {held.source: 5, other.source: 0}
