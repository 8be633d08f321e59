"""Test support: message sets of formats older than Kafka 0.11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st
from tests.support.record_batches import message
from tests.support.record_encoders import ENCODERS

COMPRESSING = ["gzip", "snappy of Java", "snappy of librdkafka", "lz4"]

OFFSET: Final = 0
TIME: Final = 1
KEY: Final = 2
VALUE: Final = 3

Message = tuple[int, int, bytes | None, bytes | None]
Written = list[Message]

contents = st.none() | st.binary(max_size=200)

written_messages = st.lists(
    st.tuples(st.integers(1, 1_000), st.integers(-1, 1 << 45), contents, contents), min_size=1, max_size=15
)


def at_offsets(steps: Written, first: int) -> Written:
    messages: Written = []
    offset = first - 1
    for step, time, key, value in steps:
        offset += step
        messages.append((offset, time, key, value))
    return messages


def wrapped(name: str, inner: bytes, offset: int, *, magic: int, timestamp: int = 0, attributes: int = 0) -> bytes:
    codec, encode = ENCODERS[name]
    return message(offset, None, encode(inner), magic=magic, timestamp=timestamp, attributes=attributes | codec)


def message_set(written: Sequence[Message], *, magic: int, base: int = 0) -> bytes:
    return b"".join(message(offset - base, key, value, magic=magic, timestamp=time) for offset, time, key, value in written)
