"""Numbers in arrays against numbers one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from tests.support.record_batches import varint

from shallow_mirror.wire.records import varints
from shallow_mirror.wire.records.unpacked_batch import read_varint
from shallow_mirror.wire.records.varints import VarintReader, put_varints, varint_sizes

however_few = pytest.mark.parametrize("few", [0, 100], ids=["in arrays", "one by one"])
longs = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-70, 70) | st.integers(-(1 << 28), 1 << 28)


def read_one_by_one(block: bytes, positions: list[int]) -> tuple[list[int], list[int]] | None:
    try:
        actual = [read_varint(block, pos) for pos in positions]
    except (IndexError, ValueError):
        return None
    return [value for value, _ in actual], [end for _, end in actual]


def read_at_once(block: bytes, positions: list[int], few: int) -> tuple[list[int], list[int]] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varints, "_FEW", few)
        actual = VarintReader(block).read(np.array(positions, np.int64))
    return None if actual is None else (actual[0].tolist(), actual[1].tolist())


@pytest.mark.slow
@however_few
@given(st.lists(longs, min_size=1, max_size=20), st.binary(max_size=5))
def test_numbers_are_read_as_they_were_written_whatever_lies_behind_them(few: int, values: list[int], behind: bytes) -> None:
    parts = [varint(value) for value in values]
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    assert read_at_once(b"".join(parts) + behind, starts[:-1], few) == (values, starts[1:])


@pytest.mark.slow
@however_few
@given(st.binary(min_size=1, max_size=40), st.data())
@example(b"\xff" * 9 + b"\x01", None)
@example(b"\xff" * 9 + b"\x02", None)
@example(b"\x80\x80\x80\x00", None)
@example(b"\x80\x80\x80\x80\x00", None)
def test_any_bytes_are_numbers_or_none_just_as_one_by_one(few: int, block: bytes, data: st.DataObject | None) -> None:
    at = st.lists(st.integers(0, len(block)), min_size=1, max_size=8)
    positions = [0] if data is None else data.draw(at)
    assert read_at_once(block, positions, few) == read_one_by_one(block, positions)


@pytest.mark.slow
@given(st.lists(longs, min_size=1, max_size=20))
def test_numbers_are_put_in_front_of_their_ends_as_short_as_can_be(values: list[int]) -> None:
    parts = [varint(value) for value in values]
    sizes = varint_sizes(np.array(values, np.int64))
    assert sizes.tolist() == [len(part) for part in parts]
    out = np.full(int(sizes.sum()), 0xEE, np.uint8)
    put_varints(out, np.cumsum(sizes), np.array(values, np.int64), sizes)
    assert out.tobytes() == b"".join(parts)
