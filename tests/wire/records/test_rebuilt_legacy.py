"""Message sets of magic 0 and 1 through conversion and rebuild: what a copy of an old topic comes to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from tests.support.examples import examples
from tests.support.legacy_batches import (
    COMPRESSING,
    KEY,
    OFFSET,
    TIME,
    VALUE,
    Written,
    at_offsets,
    message_set,
    wrapped,
    written_messages,
)
from tests.support.rebuilt_batches import all_contents, header, is_accepted, rebuilt
from tests.support.record_encoders import ENCODERS, ENOUGH, A

from shallow_mirror.types import LogAppendTimePolicy
from shallow_mirror.wire import LOG_APPEND_TIME_BIT
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.records import convert_legacy

APPENDED_AT = 1_700_000_000_123


def old_set(name: str, written: Written, *, magic: int, is_stamped: bool) -> bytes:
    """One batch's worth: a wrapper, or messages that follow each other."""
    first, last = written[0][OFFSET], written[-1][OFFSET]
    if name == "none":
        return message_set(written, magic=magic)
    inner = message_set(written, magic=magic, base=first if magic else 0)
    attributes = LOG_APPEND_TIME_BIT if is_stamped else 0
    return wrapped(name, inner, last, magic=magic, timestamp=APPENDED_AT, attributes=attributes)


@pytest.mark.thorough
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("name", ["none", *COMPRESSING])
@given(written_messages, st.integers(0, 1 << 40), st.integers(0, 14), st.booleans(), st.sampled_from(LogAppendTimePolicy))
@settings(max_examples=examples(40))
def test_messages_from_the_position_on_keep_key_value_time_and_order(
    name: str, magic: int, steps: Written, first: int, skipped: int, is_stamped: bool, policy: LogAppendTimePolicy
) -> None:
    written = at_offsets(steps, first)
    is_stamped = is_stamped and magic == 1 and name != "none"
    raw = old_set(name, written, magic=magic, is_stamped=is_stamped)
    converted = convert_legacy(memoryview(bytearray(raw)), A, max_opened_bytes=ENOUGH)
    assert converted.failure is None
    assert len(index_batches(converted.records)) == 1
    kept = written[min(skipped, len(written) - 1) :]
    made = rebuilt(bytes(converted.records), position=kept[0][OFFSET], policy=policy)
    has_append_time = is_stamped and policy is LogAppendTimePolicy.KEEP
    times = [-1 if magic == 0 else APPENDED_AT if has_append_time else record[TIME] for record in kept]
    assert all_contents(made) == [(time, record[KEY], record[VALUE], []) for time, record in zip(times, kept, strict=True)]
    assert made.offsets.tolist() == [record[OFFSET] for record in kept]
    assert [header(batch).attributes for batch in made.batches] == [ENCODERS[name][0]]
    assert all(is_accepted(batch) for batch in made.batches)
