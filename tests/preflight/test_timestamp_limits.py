from __future__ import annotations

import struct

import pytest
from tests.support.record_batches import batch, view

from shallow_mirror.preflight.timestamp_limits import TimeLimit, time_limits, too_new, too_old
from shallow_mirror.sinks.kafka.targets import NO_LIMIT_MS
from shallow_mirror.types import LogAppendTimePolicy
from shallow_mirror.wire.batches import index_batches

KEEP, PRODUCER = LogAppendTimePolicy.KEEP, LogAppendTimePolicy.PRODUCER
BEFORE, AFTER, DIFFERENCE = (f"message.timestamp.{side}.max.ms" for side in ("before", "after", "difference"))
NOW = 10_000


def stamped(first: int, newest: int, *, attributes: int = 0, deltas: tuple[int, ...] = (0, 1)) -> bytes:
    made = bytearray(batch(0, deltas=deltas, attributes=attributes, timestamp=first))
    made[35:43] = struct.pack(">q", newest)
    return bytes(made)


def test_limits_move_with_the_clock_and_no_limit_is_none() -> None:
    limits = time_limits({BEFORE: "1000", AFTER: "50"}, NOW)
    assert (limits.oldest, limits.newest) == (TimeLimit(BEFORE, 1000, 9_000), TimeLimit(AFTER, 50, 10_050))
    open_ = time_limits({BEFORE: str(NO_LIMIT_MS), AFTER: str(NO_LIMIT_MS)}, NOW)
    assert (open_.oldest, open_.newest) == (None, None)
    assert time_limits({}, NOW) == open_


def test_a_limit_of_ages_is_within_what_a_header_can_hold() -> None:
    limits = time_limits({BEFORE: str(NO_LIMIT_MS - 1), AFTER: str(NO_LIMIT_MS - 1)}, NOW)
    assert limits.oldest is not None
    assert limits.newest is not None
    index = index_batches(view(stamped(0, NO_LIMIT_MS)))
    assert too_old(index, limits.oldest, KEEP).tolist() == too_new(index, limits.newest, KEEP).tolist() == [False]


def test_brokers_before_3_6_have_one_limit_for_both_sides_and_the_narrower_counts() -> None:
    limits = time_limits({DIFFERENCE: "100", AFTER: "50", BEFORE: "500"}, NOW)
    assert limits.oldest == TimeLimit(DIFFERENCE, 100, 9_900)
    assert limits.newest == TimeLimit(AFTER, 50, 10_050)


def test_a_target_that_stamps_records_itself_takes_every_time() -> None:
    limits = time_limits({"message.timestamp.type": "LogAppendTime", AFTER: "50"}, NOW)
    assert (limits.oldest, limits.newest) == (None, None)


@pytest.mark.parametrize(
    ("made", "policy", "is_too_old", "is_too_new"),
    [
        (stamped(100, 200), KEEP, False, False),
        (stamped(99, 200), KEEP, True, False),
        (stamped(100, 201), KEEP, False, True),
        (stamped(-1, -1), KEEP, False, False),
        (stamped(99, 150, deltas=(0, 2)), KEEP, False, False),  # the first record may be gone
        (stamped(99, 150, attributes=0x40), KEEP, False, False),  # the base timestamp is a delete horizon
        (stamped(99, 98, attributes=0x40), KEEP, True, False),
        (stamped(99, 150, attributes=0x08), KEEP, False, False),  # all records get the append time
        (stamped(99, 201, attributes=0x08), KEEP, False, True),
        (stamped(99, 201, attributes=0x08), PRODUCER, True, False),  # the append time is nobody's on the target
        (stamped(201, 150, attributes=0x08), PRODUCER, False, True),
        (stamped(99, 201, attributes=0x08, deltas=(0, 2)), PRODUCER, False, False),
    ],
)
def test_only_times_that_some_record_surely_has_are_held_against_a_batch(
    made: bytes, policy: LogAppendTimePolicy, is_too_old: bool, is_too_new: bool
) -> None:
    index = index_batches(view(made))
    assert too_old(index, TimeLimit(BEFORE, 0, 100), policy).tolist() == [is_too_old]
    assert too_new(index, TimeLimit(AFTER, 0, 200), policy).tolist() == [is_too_new]


def test_rule_and_remedy_name_the_setting() -> None:
    limit = TimeLimit(AFTER, 50, 10_050)
    assert limit.rule == f"records with timestamps beyond {AFTER}=50 of the target topic (INVALID_TIMESTAMP)"
    assert limit.remedy == f"Set {AFTER}={NO_LIMIT_MS} on the target topic"
