from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.support.record_batches import batch, marker, view

from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire import MarkerType, parse_marker
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.batches.admission import Admission, Verdict, admit

KEEP, PRODUCER = LogAppendTimePolicy.KEEP, LogAppendTimePolicy.PRODUCER


def admitted(
    *batches: bytes,
    position: int = 0,
    range_end: int = 10_000,
    aborted: tuple[tuple[int, int], ...] = (),
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    max_message_bytes: int = 1_000_000,
    log_append_time: LogAppendTimePolicy = KEEP,
) -> Admission:
    records = view(*batches)
    limits = BatchLimits(max_message_bytes=max_message_bytes, isolation_level=isolation, log_append_time=log_append_time)
    return admit(
        index_batches(records),
        records,
        topic_partition=TopicPartition("t", 0),
        position=position,
        range_end=range_end,
        aborted=aborted,
        limits=limits,
    )


def verdicts(admission: Admission) -> list[Verdict]:
    return [Verdict(verdict) for verdict in admission.verdicts.tolist()]


@pytest.mark.parametrize(
    ("made", "settings", "verdict", "message"),
    [
        (batch(0, 3), {}, Verdict.RAW, None),
        (batch(0, deltas=[0, 2]), {}, Verdict.REBUILD, "compaction"),
        (batch(0, deltas=[0, 1], last_offset_delta=4), {}, Verdict.REBUILD, "compaction"),
        (batch(0, 3), {"position": 1}, Verdict.REBUILD, "straddles the position 1"),
        (batch(0, 3), {"position": 3}, Verdict.DROP_BELOW, None),
        (batch(0, 3), {"max_message_bytes": 70}, Verdict.REBUILD, "max.message.bytes=70"),
        (batch(0, 1, attributes=8), {}, Verdict.REBUILD, "LogAppendTime"),
        (batch(0, 1, attributes=8), {"log_append_time": PRODUCER}, Verdict.RAW, None),
        (batch(0, 1, attributes=0x40), {}, Verdict.RAW, None),
        (batch(0, 1, attributes=5), {}, Verdict.REFUSE, "codec"),
        (batch(0, 1, last_offset_delta=-2), {}, Verdict.REFUSE, "impossible"),
        (batch(0, deltas=[], last_offset_delta=4), {}, Verdict.DROP_EMPTY, None),
        (batch(0, deltas=[], last_offset_delta=0, attributes=0x30), {}, Verdict.DROP_EMPTY, None),
        (marker(0, 1, 9), {}, Verdict.DROP_CONTROL, None),
        (batch(50, 1), {"range_end": 50}, Verdict.BEYOND, None),
        (batch(0, 1, attributes=0x20, payload=b"\xff"), {}, Verdict.REFUSE, "control"),
    ],
)
def test_every_rule_has_its_verdict_and_a_refusal_says_what_to_do(
    made: bytes, settings: dict[str, Any], verdict: Verdict, message: str | None
) -> None:
    admission = admitted(made, **settings)
    assert verdicts(admission) == [verdict]
    assert [message in refusal.rule for refusal in (*admission.refusals, *admission.rebuilds) if message] == [True] * bool(
        message
    )
    assert [bool(refusal.remedy) for refusal in admission.refusals] == [True] * (verdict is Verdict.REFUSE)


def test_the_position_passes_dropped_batches_but_not_those_beyond() -> None:
    admission = admitted(batch(0, 3), marker(3, 1, 9), batch(4, deltas=[], last_offset_delta=2), batch(9, 2), range_end=9)
    assert admission.next_position == 7
    assert verdicts(admission)[-1] is Verdict.BEYOND


def test_a_batch_belongs_to_the_range_that_holds_its_base_offset() -> None:
    assert admitted(batch(0, 10), range_end=5).next_position == 10


def test_interleaved_transactions_lose_only_what_was_aborted() -> None:
    made = [
        batch(0, 1, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
        batch(1, 1, attributes=0x10, producer_id=2, producer_epoch=0, base_sequence=0),
        batch(2, 1),
        batch(3, 1, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=1),
        marker(4, 0, 1),
        batch(5, 1, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=2),
        marker(6, 1, 2),
        marker(7, 1, 1),
    ]
    admission = admitted(*made, aborted=((1, 0),))
    drop, control, raw = Verdict.DROP_ABORTED, Verdict.DROP_CONTROL, Verdict.RAW
    assert verdicts(admission) == [drop, raw, raw, drop, control, raw, control, control]
    assert [admission.markers[i].type for i in (4, 6, 7)] == [MarkerType.ABORT, MarkerType.COMMIT, MarkerType.COMMIT]
    assert admission.markers[4].coordinator_epoch == 5


def test_an_aborted_transaction_that_began_below_the_position_is_still_dropped() -> None:
    first = batch(0, 2, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0)
    second = batch(2, 2, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=2)
    admission = admitted(first, second, marker(4, 0, 1), position=2, aborted=((1, 0),))
    assert verdicts(admission) == [Verdict.DROP_BELOW, Verdict.DROP_ABORTED, Verdict.DROP_CONTROL]


def test_aborted_data_that_could_not_be_copied_is_no_problem() -> None:
    holed = batch(0, deltas=[0, 2], attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0)
    admission = admitted(holed, marker(3, 0, 1), aborted=((1, 0),))
    assert not admission.refusals
    assert not admission.rebuilds


def test_read_uncommitted_keeps_aborted_data_and_drops_markers() -> None:
    made = [batch(0, 1, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0), marker(1, 0, 1)]
    admission = admitted(*made, isolation=IsolationLevel.READ_UNCOMMITTED, aborted=((1, 0),))
    assert verdicts(admission) == [Verdict.RAW, Verdict.DROP_CONTROL]


@given(st.binary(max_size=200))
def test_a_hostile_control_batch_gives_a_marker_or_an_error(payload: bytes) -> None:
    made = batch(0, 1, attributes=0x30, payload=payload)
    try:
        parse_marker(memoryview(made))
    except ValueError:
        assert verdicts(admitted(made)) == [Verdict.REFUSE]
    else:
        assert verdicts(admitted(made)) == [Verdict.DROP_CONTROL]
