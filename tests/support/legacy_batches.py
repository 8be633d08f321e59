"""Test support: message sets of formats older than Kafka 0.11."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.support.record_batches import message
from tests.support.record_encoders import ENCODERS

COMPRESSING = ["gzip", "snappy of Java", "snappy of librdkafka", "lz4"]

OFFSET, TIME, KEY, VALUE = range(4)

Written = list[tuple[int, int, bytes | None, bytes | None]]

contents = st.none() | st.binary(max_size=200)

written_messages = st.lists(
    st.tuples(st.integers(1, 1_000), st.integers(-1, 1 << 45), contents, contents), min_size=1, max_size=15
)


def at_offsets(steps: Written, first: int) -> Written:
    found, at = [], first - 1
    for step, *rest in steps:
        at += step
        found.append((at, *rest))
    return found


def wrapped(name: str, inner: bytes, offset: int, *, magic: int, timestamp: int = 0, attributes: int = 0) -> bytes:
    codec, encode = ENCODERS[name]
    return message(offset, None, encode(inner), magic=magic, timestamp=timestamp, attributes=attributes | codec)


def message_set(written: Written, *, magic: int, base: int = 0) -> bytes:
    return b"".join(message(offset - base, key, value, magic=magic, timestamp=time) for offset, time, key, value in written)
