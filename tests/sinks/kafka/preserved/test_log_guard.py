"""Whether a log with preserved offsets may be written to, and how."""

from __future__ import annotations

import pytest

from shallow_mirror.broker import ProducerState
from shallow_mirror.broker.net import PRODUCER_FORGOTTEN
from shallow_mirror.errors import PreservedLogDamagedError, RetriableError, TargetDataLossError
from shallow_mirror.sinks.kafka.preserved.log_guard import GuardTimes, TargetLog, check_log
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches import SEQUENCE_MODULUS

COPY = TopicPartition("copy", 0)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
TIMES = GuardTimes(expiration_ms=24 * HOUR_MS, quiet_ms=1_500_000)
QUIET_MS = float(TIMES.quiet_ms)


def remembered(last_sequence: int, *, age_ms: int = 0) -> ProducerState:
    return ProducerState(77, 0, -1, NOW_MS - age_ms, -1, last_sequence)


def sends_first_alone(
    start: int, end: int, producer: ProducerState | None, *, recorded_end: int = 0, quiet_for_ms: float = 0.0
) -> bool:
    log = TargetLog(start, end, producer)
    return check_log(COPY, log, recorded_end=recorded_end, quiet_for_ms=quiet_for_ms, times=TIMES, now_ms=NOW_MS)


def test_a_log_whose_producer_is_remembered_is_written_to_at_once() -> None:
    assert not sends_first_alone(0, 40, remembered(39), recorded_end=40)


def test_a_producer_may_have_written_more_since_the_end_was_asked_for() -> None:
    assert not sends_first_alone(0, 40, remembered(60), recorded_end=30)


def test_sequences_begin_again_behind_the_largest() -> None:
    assert not sends_first_alone(0, SEQUENCE_MODULUS, remembered(SEQUENCE_MODULUS - 1))
    assert not sends_first_alone(0, SEQUENCE_MODULUS - 1, remembered(3))
    assert not sends_first_alone(0, 5 * SEQUENCE_MODULUS + 4, remembered(3))


def test_the_first_batch_of_a_new_log_is_sent_alone_and_at_once() -> None:
    assert sends_first_alone(0, 0, None)
    assert sends_first_alone(0, 0, remembered(2)), "the high watermark is behind"


@pytest.mark.parametrize(
    ("start", "producer"),
    [
        (0, None),
        (0, remembered(39, age_ms=TIMES.old_after_ms)),
        (40, remembered(39)),
        (40, None),
    ],
    ids=["forgotten", "soon to be forgotten", "emptied", "emptied and forgotten"],
)
def test_a_log_whose_producer_may_be_forgotten_waits_until_nothing_is_on_its_way(
    start: int, producer: ProducerState | None
) -> None:
    with pytest.raises(RetriableError, match=r"target copy-0 was idle .* written to in 1 s, when no request") as raised:
        sends_first_alone(start, 40, producer, quiet_for_ms=QUIET_MS - 1_000)
    assert raised.value.error_name == PRODUCER_FORGOTTEN
    assert sends_first_alone(start, 40, producer, quiet_for_ms=QUIET_MS)


def test_a_producer_is_trusted_for_half_of_the_time_that_brokers_remember_it() -> None:
    assert TIMES.old_after_ms == 12 * HOUR_MS
    assert not sends_first_alone(0, 40, remembered(39, age_ms=TIMES.old_after_ms - 1))


def test_records_of_the_future_do_not_make_a_producer_forgotten() -> None:
    assert not sends_first_alone(0, 40, remembered(39, age_ms=-TIMES.expiration_ms))


@pytest.mark.parametrize("quiet_for_ms", [0.0, QUIET_MS])
def test_records_behind_those_of_the_producer_are_another_ones(quiet_for_ms: float) -> None:
    with pytest.raises(
        PreservedLogDamagedError,
        match=r"from 40 on .* ends at 42, and the last batch of the mirror's producer id 77 at 40: another",
    ) as raised:
        sends_first_alone(0, 42, remembered(39), quiet_for_ms=quiet_for_ms)
    assert (raised.value.topic_partition, raised.value.offset) == (COPY, 40)


def test_another_writer_is_found_where_sequences_begin_again() -> None:
    with pytest.raises(PreservedLogDamagedError) as raised:
        sends_first_alone(0, SEQUENCE_MODULUS + 1, remembered(SEQUENCE_MODULUS - 1))
    assert raised.value.offset == SEQUENCE_MODULUS


@pytest.mark.parametrize("producer", [None, remembered(29)])
def test_a_log_that_ends_below_what_the_map_has_has_lost_records(producer: ProducerState | None) -> None:
    with pytest.raises(TargetDataLossError) as raised:
        sends_first_alone(0, 30, producer, recorded_end=40, quiet_for_ms=QUIET_MS)
    assert (raised.value.topic_partition, raised.value.recorded_end, raised.value.base_offset) == (COPY, 40, 30)


def continues(end: int, producer: ProducerState | None, *, quiet_for_ms: float = 0.0) -> bool:
    log = TargetLog(0, end, producer)
    return check_log(COPY, log, recorded_end=40, quiet_for_ms=quiet_for_ms, times=TIMES, now_ms=NOW_MS, origin=40)


def test_the_first_batch_behind_what_a_log_held_before_is_sent_alone_and_at_once() -> None:
    assert continues(40, None)


def test_a_producer_of_which_nothing_is_committed_is_never_trusted() -> None:
    """A deposed leader may remember the first batch, and lose it, while the second one of another writer is on its way."""
    assert continues(40, remembered(42))


def test_behind_its_origin_a_log_is_like_any_other() -> None:
    assert not continues(45, remembered(44))
    with pytest.raises(RetriableError):
        continues(45, None)
    assert continues(45, None, quiet_for_ms=QUIET_MS)
    with pytest.raises(TargetDataLossError):
        continues(39, None)
