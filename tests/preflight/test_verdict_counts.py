from __future__ import annotations

from typing import Any

import pytest
from tests.support.record_batches import batch, marker, view

from shallow_mirror.preflight.timestamp_limits import TimeLimit, TimeLimits
from shallow_mirror.preflight.verdict_counts import MOST_RULES, Amount, RuleCount, TopicCounts
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, SegmentKind, TopicPartition
from shallow_mirror.wire.batches import admit, index_batches
from shallow_mirror.wire.batches.coalescing import CHEAPER_FROM_BATCHES

ORDERS_0 = TopicPartition("orders", 3)
NO_TIMES = TimeLimits(None, None)


def counted(
    *batches: bytes,
    position: int = 0,
    range_end: int = 1_000_000,
    aborted: Any = (),
    most: int = 1 << 20,
    times: TimeLimits = NO_TIMES,
    counts: TopicCounts | None = None,
    coalesce_bytes: int | None = None,
) -> TopicCounts:
    counts = TopicCounts() if counts is None else counts
    limits = BatchLimits(
        max_message_bytes=most,
        isolation_level=IsolationLevel.READ_COMMITTED,
        log_append_time=LogAppendTimePolicy.KEEP,
        coalesce_bytes=coalesce_bytes,
    )
    records = view(*batches)
    index = index_batches(records)
    admission = admit(
        index, records, topic_partition=ORDERS_0, position=position, range_end=range_end, aborted=aborted, limits=limits
    )
    counts.add(ORDERS_0, index, admission, limits, times)
    return counts


def test_what_readers_see_is_counted_by_codec_and_passes_raw() -> None:
    batches = [batch(0, 5), batch(5, 3, attributes=4), batch(8, 2, attributes=4)]
    counts = counted(*batches)
    assert counts.data == counts.raw == counts.read == Amount(3, 10, sum(len(batch) for batch in batches))
    assert counts.codecs == {
        "none": Amount(1, 5, len(batches[0])),
        "zstd": Amount(2, 5, len(batches[1]) + len(batches[2])),
    }
    assert (counts.rebuilds, counts.refusals, counts.dropped) == ({}, {}, {})
    assert counts.largest_batch_bytes == len(batches[0])


def test_dropped_batches_are_counted_by_what_they_become_in_the_map() -> None:
    aborted = batch(0, 5, attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0)
    counts = counted(aborted, marker(5, 0, 7), marker(6, 1, 8), batch(7, deltas=[], last_offset_delta=2), aborted=[(7, 0)])
    assert counts.data == Amount()
    assert counts.dropped[SegmentKind.ABORTED] == Amount(1, 5, len(aborted))
    actual = {kind: amount.batch_count for kind, amount in counts.dropped.items()}
    assert actual == {SegmentKind.ABORTED: 1, SegmentKind.ABORT: 1, SegmentKind.COMMIT: 1, SegmentKind.GAP: 1}
    assert counts.read.batch_count == 4


def test_what_lies_below_the_position_or_behind_the_end_is_not_counted() -> None:
    counts = counted(batch(0, 5), batch(5, 5), batch(10, 5), position=5, range_end=10)
    assert counts.read == counts.raw == Amount(1, 5, len(batch(5, 5)))


def test_reasons_for_rebuilding_are_reported_with_the_first_offset() -> None:
    counts = counted(batch(0, deltas=[0, 2]), batch(3, deltas=[0, 3]), batch(7, 2, attributes=8), batch(9, 2))
    by_rule = {rule: (rebuild.base_offset, rebuild.amount.batch_count) for rule, rebuild in counts.rebuilds.items()}
    assert by_rule == {
        "records are missing inside the batch (compaction)": (0, 2),
        "the source topic has message.timestamp.type=LogAppendTime": (7, 1),
    }
    assert (counts.rebuilt.record_count, counts.raw.record_count, counts.data.record_count) == (6, 2, 8)


def test_small_neighbours_are_counted_as_what_becomes_one() -> None:
    batches = [batch(0, 2), batch(2, 1), batch(3, 1, attributes=3, payload=b"lz4"), batch(4, 1, payload=bytes(900))]
    counts = counted(*batches, coalesce_bytes=4_000)
    assert (counts.raw.batch_count, counts.rebuilt.batch_count) == (2, 2)
    (rule,) = counts.rebuilds
    assert "write.coalesce_bytes" in rule
    assert counted(*batches).raw.batch_count == 4


def test_a_batch_too_large_is_rebuilt_unless_it_is_one_record() -> None:
    counts = counted(batch(0, 40), batch(40, 1, payload=b"x" * 400), batch(41, 1), most=200)
    assert [rebuild.base_offset for rebuild in counts.rebuilds.values()] == [0]
    ((rule, refusal),) = counts.refusals.items()
    assert rule == "one record that alone is larger than max.message.bytes=200 of the target topic"
    assert (refusal.base_offset, refusal.remedy) == (40, "Set its max.message.bytes to 461 or more")
    assert counts.raw.batch_count == 1


def test_the_remedy_is_enough_for_the_largest_batch_that_came() -> None:
    counts = TopicCounts()
    for size in (400, 900, 500):
        counted(batch(0, 1, payload=b"x" * size), batch(1, 2, payload=b"x" * size), most=200, counts=counts)
    for rules in (counts.refusals, counts.rebuilds):
        ((_, count),) = rules.items()
        assert (count.remedy, count.largest_batch_bytes) == ("Set its max.message.bytes to 961 or more", 961)
        assert count.amount.batch_count == 3


def test_a_damaged_header_is_refused_by_the_rule_of_the_mirror() -> None:
    counts = counted(batch(0, 1, attributes=6), batch(1, 1))
    assert [(rule, refusal.base_offset) for rule, refusal in counts.refusals.items()] == [("unknown compression codec", 0)]
    assert counts.codecs["unknown (6)"].batch_count == 1


def test_times_that_the_target_does_not_take_are_refused_and_not_rebuilt_as_well() -> None:
    times = TimeLimits(TimeLimit("message.timestamp.before.max.ms", 5, 100), TimeLimit("message.timestamp.after.max.ms", 7, 200))
    counts = counted(
        batch(0, 2, timestamp=99),
        batch(2, 2, timestamp=100),
        batch(4, 2, timestamp=200),
        batch(6, deltas=[0, 2], timestamp=201),
        times=times,
    )
    assert {refusal.base_offset for refusal in counts.refusals.values()} == {0, 6}
    assert all("(INVALID_TIMESTAMP)" in rule for rule in counts.refusals)
    assert (counts.rebuilds, counts.raw.batch_count, counts.refused.batch_count) == ({}, 2, 2)


def test_a_source_that_makes_a_rule_of_every_batch_takes_no_more_memory() -> None:
    counts = TopicCounts()
    for n in range(1, MOST_RULES + 5):
        counted(batch(0, 10), position=n % 9 + 1, counts=counts)
        counts.refuse(f"rule {n}", RuleCount("", ORDERS_0, n, 1, Amount(1, 1, 1)))
    assert len(counts.refusals) == MOST_RULES + 1
    assert counts.refusals["other rules"].amount.batch_count == 4
    assert counts.refused.batch_count == MOST_RULES + 4


def test_counts_for_machines_name_rule_remedy_and_first_partition() -> None:
    document = counted(batch(0, deltas=[0, 2]), batch(3, 1, attributes=6)).document()
    assert document["rebuilds"][0]["rule"] == "records are missing inside the batch (compaction)"
    assert document["refusals"][0]["first"] == {"topic": "orders", "partition": 3, "base_offset": 3}
    assert document["refused"]["batch_count"] == document["rebuilt"]["batch_count"] == 1


@pytest.mark.parametrize("records_count", [-5, 2_000_000_000])
def test_impossible_record_counts_break_no_sum(records_count: int) -> None:
    damaged = bytearray(batch(0, 1))
    damaged[57:61] = records_count.to_bytes(4, "big", signed=True)
    counts = counted(bytes(damaged), batch(1, 1))
    assert counts.data.batch_count == 2
    assert counts.data.record_count == max(records_count, 0) + 1


def test_batches_that_are_cheaper_combined_are_counted_whatever_the_setting_is() -> None:
    batches = [batch(n, 1, payload=bytes(100)) for n in range(CHEAPER_FROM_BATCHES)]
    large = batch(CHEAPER_FROM_BATCHES, 1, payload=bytes(500_000))
    for coalesce_bytes in (None, 1 << 14):
        counts = counted(*batches, large, coalesce_bytes=coalesce_bytes)
        assert counts.cheaper_combined == Amount(len(batches), len(batches), sum(map(len, batches)))
    assert counted(*batches[1:], large).cheaper_combined == Amount()
