from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.verify import DifferenceKind
from shallow_mirror.verify.fingerprints import NOWHERE, Items, batch_items
from shallow_mirror.verify.map_index import BEHIND_ALL, MapRows, RowProblem, plan_range_pairs, row_problems
from shallow_mirror.wire import NATIVE_HEADER

Row = tuple[int, int, str, int | None]


def rows_of(*rows: Row, rebuilt: tuple[int, ...] = (), size_bytes: int = 10) -> MapRows:
    """(source start, source end, kind, target start)."""
    columns: dict[str, list[Any]] = {
        "source_start": [row[0] for row in rows],
        "source_end": [row[1] for row in rows],
        "kind": [row[2] for row in rows],
        "target_start": [row[3] for row in rows],
        "rebuilt_batch_count": [int(i in rebuilt) for i in range(len(rows))],
        "size_bytes": [size_bytes for _ in rows],
    }
    return MapRows.of(pa.table(columns, schema=pa.schema(
        [(name, pa.string() if name == "kind" else pa.int64()) for name in columns]
    )))  # fmt: skip


def items_at(*ranges: tuple[int, int]) -> Items:
    headers = np.zeros(len(ranges), NATIVE_HEADER)
    headers["base_offset"] = [start for start, _ in ranges]
    headers["last_offset_delta"] = [end - start - 1 for start, end in ranges]
    headers["batch_length"] = 100
    return batch_items(headers, np.full(len(ranges), 112))


MAPPED: tuple[Row, ...] = (
    (0, 0, "gap", None),
    (0, 10, "data", 100),
    (10, 11, "commit", None),
    (11, 20, "data", 111),
    (20, 30, "gap", None),
)


def test_source_items_lead_by_their_row_and_those_that_no_row_holds_whole_are_opened() -> None:
    items = items_at((0, 5), (5, 10), (8, 12), (10, 11), (12, 20), (20, 25), (40, 41))
    overlapping_batches = rows_of(*MAPPED).locate_source(items)
    assert items["partner"].tolist() == [100, 105, 108, NOWHERE, 112, NOWHERE, NOWHERE]
    assert overlapping_batches.tolist() == [False, False, True, False, False, False, False]


def test_what_touches_a_rebuilt_row_is_opened_on_both_sides() -> None:
    rows = rows_of(*MAPPED, rebuilt=(3,))
    source, target = items_at((0, 10), (11, 15), (15, 20)), items_at((100, 110), (108, 112), (119, 120), (120, 130))
    assert rows.locate_source(source).tolist() == [False, True, True]
    assert rows.locate_target(target).tolist() == [False, True, True, False]
    assert target["partner"].tolist() == [0, 8, 19, NOWHERE]


def test_the_image_of_an_offset_is_where_the_next_copy_begins() -> None:
    rows = rows_of(*MAPPED)
    assert [rows.image(offset) for offset in (0, 4, 10, 15, 20)] == [100, 104, 111, 115, BEHIND_ALL]


def test_retention_counts_offsets_that_either_side_deleted_once_and_no_gap() -> None:
    deleted = rows_of(*MAPPED).deleted_offsets(range(4), 12, 115)
    assert (deleted.at_source, deleted.at_target, deleted.left) == (12, 3, 5)
    assert rows_of(*MAPPED).deleted_offsets(range(4), 30, 0).at_source == 20


@pytest.mark.parametrize(
    ("rows", "kind", "start", "end"),
    [
        (((0, 10, "data", 100), (12, 20, "data", 112)), DifferenceKind.NOT_IN_MAP, 10, 12),
        (((0, 10, "data", 100), (8, 20, "data", 110)), DifferenceKind.EXTRA, 8, 10),
        (((0, 10, "data", 100), (10, 20, "data", 105)), DifferenceKind.REORDERED, 10, 20),
        (((0, 10, "data", 100), (10, 20, "data", 50)), DifferenceKind.REORDERED, 10, 20),
    ],
)
def test_each_contradiction_of_the_map_with_itself_is_reported(
    rows: tuple[Row, ...], kind: DifferenceKind, start: int, end: int
) -> None:
    (actual,) = row_problems(rows_of(*rows))
    assert isinstance(actual, RowProblem)
    assert (actual.kind, actual.start, actual.end) == (kind, start, end)
    assert not row_problems(rows_of(*MAPPED))


row_sizes = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["data", "data", "commit", "gap"])), min_size=1, max_size=12)


@pytest.mark.slow
@given(row_sizes, st.integers(1, 60), st.integers(0, 40), st.integers(0, 60))
def test_ranges_cover_both_lines_of_offsets_once(
    sizes: list[tuple[int, str]], size_bytes: int, skipped: int, behind: int
) -> None:
    rows: list[Row] = []
    source, target = 0, 200
    for length, kind in sizes:
        rows.append((source, source + length, kind, target if kind == "data" else None))
        source, target = source + length, target + length + 1 if kind == "data" else target
    mapped = rows_of(*rows)
    first = min(skipped, len(mapped) - 1)
    begin = int(mapped.start[first])
    range_pairs = plan_range_pairs(mapped, source_from=begin, target_from=0, target_until=target + behind, size_bytes=size_bytes)
    assert [pair.source.start for pair in range_pairs] == [begin, *(pair.source.end for pair in range_pairs[:-1])]
    assert [pair.target.start for pair in range_pairs] == [0, *(pair.target.end for pair in range_pairs[:-1])]
    assert (range_pairs[-1].source.end, range_pairs[-1].target.end) == (source, target + behind)
    assert [row for pair in range_pairs for row in pair.rows] == list(range(first, len(mapped)))
    for pair in range_pairs:
        for row in pair.rows:
            if mapped.is_data[row]:
                assert pair.target.start <= mapped.target_start[row]
                assert mapped.target_end[row] <= pair.target.end
