"""The record at which a group stands in a copy without offsets: what is exact, what is repeated, and that nothing is missed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.mirror_maker.running.record_search import (
    BEHIND_ROWS,
    NEIGHBOURS,
    WHOLE,
    WITHOUT_HEADERS,
    WITHOUT_TIMESTAMP,
    Found,
    RecordSearch,
    Row,
    anchors_at,
)


def row(offset: int, value: str, timestamp_ms: int = 0, headers: str = "") -> Row:
    """Build content of 40 bytes as `record_content` does: timestamp, key and value, digest."""
    content = timestamp_ms.to_bytes(8, "little") + value.encode().ljust(8, b".") + (value + headers).encode().ljust(24, b".")
    return Row(offset, content)


def rows(values: str, start: int = 0) -> list[Row]:
    return [row(start + number, value) for number, value in enumerate(values) if value != " "]


def search(source: Sequence[Row], copy: Sequence[Row], position: int, compared: slice = WHOLE, piece: int = 5) -> Found | None:
    searched = RecordSearch(anchors_at(copy, position), compared)
    for first in range(0, len(source), piece):
        searched.add(source[first : first + piece])
    return searched.result()


@pytest.mark.parametrize(
    ("source", "copy", "position", "offset", "repeats"),
    [
        pytest.param("abcdef", "abcdef", 2, 2, 0, id="the next record"),
        pytest.param("abcdef", "abcd", 4, 4, 0, id="behind the last record that was copied"),
        pytest.param("ab  cdef", "abcdef", 2, 4, 0, id="behind markers of the source"),
        pytest.param("abcdef", "ab  cdef", 3, 2, 0, id="in front of markers of the copy"),
        pytest.param("axxxb", "axxxb", 2, 2, 0, id="equal records between others"),
        pytest.param("xxxx", "xx", 1, 0, 3, id="nothing but equal records"),
        pytest.param("xxxxxx", "xxxxxx", 5, 0, 5, id="the last of equal records"),
        pytest.param("abcdefgh", "abcdcdefgh", 4, 2, 0, id="the first record that was copied again"),
        pytest.param("abcdefgh", "abcdcdefgh", 6, 4, 0, id="behind records that were copied twice"),
        pytest.param("ab ef", "abcdef", 2, 2, 0, id="compaction removed the next records of the source"),
        pytest.param("abcr   s", "abcrs", 4, 7, 0, id="a hole at the position"),
        pytest.param(
            "ab  defrgh", "abrdefgh", 2, 2, 3, id="the source has only an equal record behind others that were not read"
        ),
        pytest.param(" b  defqgh", "abqdefgh", 3, 4, 0, id="the next record is where the ones behind it say"),
    ],
)
def test_a_position_is_found_or_the_earliest_possible_one(
    source: str, copy: str, position: int, offset: int, repeats: int
) -> None:
    found = search(rows(source, 100), rows(copy), position)
    assert found is not None
    assert (found.offset - 100, found.repeats) == (offset, repeats)


def test_without_an_equal_record_nothing_is_found() -> None:
    assert search(rows("uvwxyz"), rows("abc"), 1) is None


def test_headers_and_timestamps_can_be_left_out() -> None:
    source = [row(number, value, 1000 + number, "h") for number, value in enumerate("abcdef")]
    other_headers = [row(number, value, 1000 + number, "aA==") for number, value in enumerate("abcdef")]
    other_times = [row(number, value, 9000, "h") for number, value in enumerate("abcdef")]
    assert search(source, other_headers, 3) is None
    assert search(source, other_times, 3) is None
    expected = Found(offset=3, repeats=0, passed_over=0)
    assert search(source, other_headers, 3, WITHOUT_HEADERS) == expected
    assert search(source, other_times, 3, WITHOUT_TIMESTAMP) == expected
    assert other_times[0].timestamp_ms == 9000


def test_a_search_ends_some_records_behind_a_place_with_equal_neighbours() -> None:
    copy = rows("abcdef")
    searched = RecordSearch(anchors_at(copy, 3))
    searched.add(rows("abcdef"))
    assert not searched.is_decided
    searched.add([row(number, "z") for number in range(6, 6 + NEIGHBOURS + BEHIND_ROWS)])
    assert searched.is_decided
    assert searched.result() == Found(offset=3, repeats=0, passed_over=0)


def test_a_long_search_keeps_few_records() -> None:
    searched = RecordSearch(anchors_at(rows("abcdef"), 3))
    for first in range(0, 50_000, 500):
        searched.add([row(number, "z") for number in range(first, first + 500)])
    searched.add(rows("abcdef", 50_000))
    assert searched.result() == Found(offset=50_003, repeats=0, passed_over=0)
    assert len(searched._contents) < 10_000


_VALUES = st.lists(st.sampled_from("abc"), min_size=1, max_size=60)


@given(values=_VALUES, first=st.integers(0, 59), position=st.integers(0, 60), piece=st.integers(1, 70))
def test_no_record_is_left_out_and_what_is_called_exact_is(values: list[str], first: int, position: int, piece: int) -> None:
    """MirrorMaker 2 has copied some records in one run, of which many are equal."""
    source = [row(10 + 2 * number, value) for number, value in enumerate(values)]
    copy = [row(number, row_.content[8:9].decode()) for number, row_ in enumerate(source[first : first + 40])]
    position = min(position, len(copy))
    found = search(source, copy, position, piece=piece)
    if not copy:
        assert found is None
        return
    assert found is not None
    unread = [row_.offset for row_ in source[first + position :]]
    assert all(offset >= found.offset for offset in unread)
    repeated = sum(row_.offset >= found.offset for row_ in source[: first + position])
    assert repeated <= found.repeats
    assert repeated == 0 or not found.is_exact


@given(
    removed=st.sets(st.integers(0, 39), max_size=39), position=st.integers(0, 40), runs=st.lists(st.integers(1, 40), max_size=3)
)
def test_with_unlike_records_no_restart_and_no_compaction_leaves_one_out(
    removed: set[int], position: int, runs: Iterable[int]
) -> None:
    """After a restart the last records are copied again; compaction has removed some from the source."""
    order = list(range(40))
    for run in runs:
        order += range(40 - run, 40)
    copy = [row(number, f"v{record}") for number, record in enumerate(order)]
    source = [row(record, f"v{record}") for record in range(40) if record not in removed]
    read = set(order[:position])
    found = search(source, copy, position)
    if found is not None:
        assert all(row_.offset >= found.offset or row_.offset in read for row_ in source)
