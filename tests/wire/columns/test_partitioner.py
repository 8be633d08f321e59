"""Partitions of records, as Java's producer chooses them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.wire.columns import Partitioner, murmur2

# org.apache.kafka.common.utils.UtilsTest
OF_JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

MASK = 0xFFFFFFFF


def one_by_one(data: bytes) -> int:
    m, h = 0x5BD1E995, 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & MASK
        h = (h * m & MASK) ^ ((k ^ k >> 24) * m & MASK)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & MASK
    h = (h ^ h >> 13) * m & MASK
    return h ^ h >> 15


def test_hashes_are_those_of_java() -> None:
    hashes = murmur2(pa.array(list(OF_JAVA), pa.binary()))
    assert hashes.view(np.int32).tolist() == list(OF_JAVA.values())


@given(st.lists(st.binary(max_size=70), max_size=30), st.data())
def test_keys_of_different_lengths_are_hashed_as_one_by_one(keys: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(keys)))
    assert murmur2(pa.array(keys, pa.binary())[first:]).tolist() == [one_by_one(key) for key in keys[first:]]


@pytest.mark.slow
@given(st.lists(st.binary(max_size=20), min_size=1), st.integers(1, 50))
def test_a_key_has_the_partition_that_java_gives_it(keys: list[bytes], count: int) -> None:
    chosen = Partitioner(count, sticky_bytes=10, first=0).partitions(pa.array(keys, pa.binary()), np.zeros(len(keys), np.int64))
    assert chosen.tolist() == [(one_by_one(key) & 0x7FFFFFFF) % count for key in keys]


def test_records_without_a_key_stay_until_enough_bytes_went_to_a_partition() -> None:
    partitioner = Partitioner(3, sticky_bytes=100, first=2)
    assert partitioner.partitions(None, np.full(5, 40)).tolist() == [2, 2, 0, 0, 0]
    assert partitioner.partitions(None, np.full(3, 40)).tolist() == [1, 1, 2], "it continues where it was"


def test_keys_and_records_without_one_may_be_mixed() -> None:
    keys = pa.array([None, b"21", None, b""], pa.binary())
    chosen = Partitioner(4, sticky_bytes=10, first=1).partitions(keys, np.array([10, 5, 10, 5]))
    assert chosen.tolist() == [1, (OF_JAVA[b"21"] & 0x7FFFFFFF) % 4, 2, (one_by_one(b"") & 0x7FFFFFFF) % 4]


@pytest.mark.parametrize("keys", [None, pa.array([], pa.binary())])
def test_no_records_have_no_partitions(keys: pa.Array | None) -> None:
    assert Partitioner(4, sticky_bytes=10, first=1).partitions(keys, np.array([], np.int64)).tolist() == []
