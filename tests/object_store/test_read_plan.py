"""Which requests read the ranges of an object."""

from __future__ import annotations

from hypothesis import given, strategies as st

from shallow_mirror.object_store.base import plan_reads

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@given(RANGES, st.integers(1, 20))
def test_the_pieces_of_bounded_requests_are_the_ranges(ranges: list[tuple[int, int]], most_bytes: int) -> None:
    data = bytes(range(120))
    plan = plan_reads(ranges, most_bytes)
    responses = [data[start : start + size] for start, size in plan.requests]
    assert all(0 < len(response) <= most_bytes for response in responses)
    joined = [b"".join(responses[piece.request][piece.start : piece.end] for piece in pieces) for pieces in plan.pieces]
    assert joined == [data[start : start + size] for start, size in ranges]
    assert sum(map(len, responses)) == sum(size for _, size in ranges)


def test_adjacent_ranges_are_one_request() -> None:
    assert plan_reads([(5, 10), (15, 1), (16, 4), (30, 2)], 20).requests == ((5, 15), (30, 2))
    assert plan_reads([(0, 25), (25, 5)], 20).requests == ((0, 20), (20, 10))
    assert plan_reads([], 20).requests == plan_reads([(3, 0)], 20).requests == ()
