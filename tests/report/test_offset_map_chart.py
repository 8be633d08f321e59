"""The picture of a map shows every kind there is, wherever it is, however small."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.report.contents import map_rows

from shallow_mirror.report.offset_map_chart import CELLS, MapPicture, map_picture
from shallow_mirror.types import SourcePartition

A = SourcePartition("orders", "id", 0)


def picture(*segments: tuple[int, int, str, int | None, int]) -> MapPicture:
    drawing = map_picture(A, map_rows(*segments))
    assert drawing is not None
    return drawing


def test_one_marker_in_a_million_offsets_is_seen_and_rebuilt_data_is_distinguished() -> None:
    drawing = picture(
        (0, 500_000, "data", 10, 0), (500_000, 500_001, "commit", None, 0), (500_001, 1_000_000, "data", 500_012, 1)
    )
    assert (drawing.first, drawing.end, drawing.row_count) == (0, 1_000_000, 3)
    assert [lane.name for lane in drawing.lanes] == ["data", "rebuilt", "commit"]
    data, rebuilt, commit = (lane.pieces for lane in drawing.lanes)
    assert data == [(0.0, 500_000.0, 1.0)]
    ((begin, end, share),) = commit
    assert begin <= 500_000 < end
    assert 0 < share < 0.001
    assert rebuilt[-1][1] == 1_000_000
    assert drawing.shifts == ((0, -10), (500_000, -10), (500_001, -11), (1_000_000, -11))


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 500), st.sampled_from(["data", "gap", "abort"])), min_size=1, max_size=700),
    st.integers(0, 10**12),
)
def test_shares_of_all_kinds_add_up_to_the_offsets_there_are(parts: list[tuple[int, str]], first: int) -> None:
    segments, at = [], first
    for length, kind in parts:
        segments.append((at, at + length, kind, at if kind == "data" else None, 0))
        at += length
    drawing = picture(*segments)
    covered = sum((end - begin) * share for lane in drawing.lanes for begin, end, share in lane.pieces)
    assert abs(covered - (at - first)) <= (at - first) * 0.001 + 1
    assert len(drawing.shifts) <= 2 * (CELLS + 2)
    assert {shift for _, shift in drawing.shifts} <= {0.0}


def test_rows_without_offsets_are_no_picture() -> None:
    assert map_picture(A, map_rows((5, 5, "gap", None, 0))) is None
