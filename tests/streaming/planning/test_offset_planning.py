from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.errors import DataLossError
from shallow_mirror.sinks import SlotResult, SteadyCopying
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition

MIB = 1 << 20
A, B, C = (SourcePartition("orders", "idA", 0), SourcePartition("orders", "idA", 1), SourcePartition("users", "idB", 0))

_SOURCES = st.builds(
    lambda topic, partition: SourcePartition(topic, f"id-{topic}", partition), st.sampled_from("abc"), st.integers(0, 9)
)
_OFFSETS = st.dictionaries(_SOURCES, st.integers(0, 2**63 - 1))


@pytest.mark.slow
@given(_OFFSETS)
def test_a_stream_offset_survives_json_and_equal_ones_are_equal_text(offsets: dict[SourcePartition, int]) -> None:
    text = json.dumps(offset_planning.build_stream_offset(offsets))
    assert offset_planning.parse_stream_offset(json.loads(text)) == offsets
    shuffled = dict(reversed(list(offsets.items())))
    assert json.dumps(offset_planning.build_stream_offset(shuffled)) == text


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": 2, "topics": {}},
        {"version": 1},
        {"version": 1, "topics": {"a": 1}},
        {"version": 1, "topics": {"a": {"partitions": {"0": 1}}}},
        {"version": 1, "topics": {"a": {"id": "x", "partitions": {"0": -1}}}},
        {"version": 1, "topics": {"a": {"id": "x", "partitions": {"0": True}}}},
        {"version": 1, "topics": {"a": {"id": "x", "partitions": {"-1": 1}}}},
        {"version": 1, "topics": {"a": {"id": "x", "partitions": {"0": "7"}}}},
    ],
)
def test_hostile_stream_offsets_are_value_errors(document: object) -> None:
    with pytest.raises(ValueError):
        offset_planning.parse_stream_offset(document)


def test_two_ids_of_one_topic_do_not_fit_one_stream_offset() -> None:
    with pytest.raises(ValueError):
        offset_planning.build_stream_offset({A: 1, SourcePartition("orders", "other", 5): 1})


def test_a_recreated_topic_is_data_loss_and_a_missing_one_is_not() -> None:
    offset_planning.require_same_topics({A: 5}, {})
    offset_planning.require_same_topics({A: 5}, {"orders": "idA"})
    with pytest.raises(DataLossError, match="created again"):
        offset_planning.require_same_topics({A: 5}, {"orders": "idZ"})


def test_a_log_that_ends_below_the_position_is_data_loss() -> None:
    offset_planning.require_not_truncated({A: 5, B: 7}, {A: 5})
    with pytest.raises(DataLossError, match="truncated"):
        offset_planning.require_not_truncated({A: 5}, {A: 4})


@pytest.mark.parametrize(("rate", "expected"), [(None, 64 * MIB), (4.0 * MIB, 300 * MIB), (1e12, 1024 * MIB), (10.0, MIB // 16)])
def test_the_first_micro_batch_is_small_and_later_ones_fit_a_quarter_of_the_timeout(rate: float | None, expected: int) -> None:
    assert offset_planning.plan_budget_bytes(1024 * MIB, rate, 300_000) == expected


def test_a_plan_takes_less_than_the_commit_interval_at_the_speed_that_was_seen() -> None:
    assert offset_planning.plan_budget_bytes(1024 * MIB, 4.0 * MIB, 300_000, 20_000) == 60 * MIB
    assert offset_planning.plan_budget_bytes(1024 * MIB, 4.0 * MIB, 300_000, 200_000) == 300 * MIB
    assert offset_planning.plan_budget_bytes(1024 * MIB, 0.1 * MIB, 300_000, 20_000) == int(1.5 * MIB)


def test_the_ceiling_holds_for_the_first_micro_batch_too() -> None:
    assert offset_planning.plan_budget_bytes(5 * MIB, None, 300_000) == 5 * MIB


def test_small_backlogs_are_served_whole_and_the_rest_is_shared_equally() -> None:
    planned = offset_planning.plan_ends({A: 0, B: 0, C: 0}, {A: 10, B: 1000, C: 1000}, {A: 1.0, B: 1.0, C: 2.0}, 210)
    assert planned == {A: 10, B: 100, C: 50}


_PLANS = st.dictionaries(_SOURCES, st.tuples(st.integers(0, 10**9), st.integers(-5, 10**9), st.floats(0.01, 10**6)), max_size=12)


@pytest.mark.slow
@given(_PLANS, st.integers(1, 1 << 40))
def test_a_plan_never_goes_back_nor_beyond_the_end_and_always_moves_a_backlog(
    plan: dict[SourcePartition, tuple[int, int, float]], budget: int
) -> None:
    start = {source: at for source, (at, _, _) in plan.items()}
    ends = {source: at + backlog for source, (at, backlog, _) in plan.items()}
    ratio = {source: estimate for source, (_, _, estimate) in plan.items()}
    planned = offset_planning.plan_ends(start, ends, ratio, budget)
    assert planned.keys() == start.keys()
    for source in plan:
        assert start[source] <= planned[source] <= max(start[source], ends[source])
        assert (planned[source] > start[source]) == (ends[source] > start[source])
    read = sum((planned[source] - start[source]) * ratio[source] for source in plan)
    assert read <= budget * (1 + 1e-9) + sum(ratio.values())


@pytest.mark.slow
@given(
    st.dictionaries(_SOURCES, st.floats(1, 1e12), min_size=1), st.integers(1, 8), st.dictionaries(_SOURCES, st.integers(0, 12))
)
def test_every_active_partition_is_in_exactly_one_slot(
    sizes: dict[SourcePartition, float], used: int, last: dict[SourcePartition, int]
) -> None:
    slots = offset_planning.plan_slots(sizes, used, last)
    assert slots.keys() == sizes.keys()
    assert all(0 <= slot < used for slot in slots.values())


def test_partitions_keep_their_slot_unless_that_unbalances_the_bytes() -> None:
    assert offset_planning.plan_slots({A: 10.0, B: 10.0}, 2, {A: 1, B: 0}) == {A: 1, B: 0}
    assert offset_planning.plan_slots({A: 10.0, B: 10.0}, 2, {A: 1, B: 1}) == {A: 1, B: 0}
    assert offset_planning.plan_slots({A: 30.0, B: 10.0, C: 10.0}, 2, {}) == {A: 0, B: 1, C: 1}


@pytest.mark.parametrize(
    ("limits", "used"),
    [((8, 4, 10, 1e12), 4), ((8, 16, 10, 33.0 * MIB), 2), ((8, 16, 3, 1e12), 3), ((2, 16, 3, 1e12), 2), ((8, 8, 8, 0.5), 1)],
)
def test_slots_used_is_the_least_of_its_four_limits(limits: tuple[int, int, int, float], used: int) -> None:
    assert offset_planning.plan_slot_count(*limits, 32 << 20, None, 1 << 16) == used
    assert offset_planning.plan_slot_count(*limits, 32 << 20, 1e6, 1 << 16) == used


@pytest.mark.parametrize(
    ("active", "bytes_per_batch", "used"), [(4, 4e3, 1), (4, 16e3, 1), (8, 16e3, 1), (8, 17e3, 2), (64, 4e3, 3), (4, 350e3, 4)]
)
def test_partitions_of_small_batches_share_slots_so_that_requests_are_worth_sending(
    active: int, bytes_per_batch: float, used: int
) -> None:
    assert offset_planning.plan_slot_count(8, 4, active, 1e12, 32 << 20, bytes_per_batch, 1 << 16) == used


def test_ranges_hold_what_moves_and_entering_partitions_have_none() -> None:
    ranges = offset_planning.plan_ranges(
        {A: 5, B: 5},
        {A: 9, B: 5, C: 3},
        bytes_per_offset={A: 2.0},
        slots=8,
        slot_bytes=32 << 20,
        parallelism=2,
        last={},
    )
    assert [
        (planned_range.slot, planned_range.source, planned_range.start, planned_range.end, planned_range.bytes_per_offset)
        for planned_range in ranges
    ] == [(0, A, 5, 9, 2.0)]


def test_what_was_read_is_measured_by_offset_and_second() -> None:
    target = TargetPartition("orders", "t", 0)
    segments = [
        Segment(source=A, source_start=0, source_end=10, kind=SegmentKind.DATA, target=target, size_bytes=4 * MIB),
        Segment(source=A, source_start=10, source_end=20, kind=SegmentKind.GAP, target=target),
        Segment(source=B, source_start=0, source_end=0, kind=SegmentKind.GAP, target=target),
    ]
    measured = offset_planning.measure(segments, 2.0, {"": 7})
    assert measured.bytes_per_offset == {A: 4 * MIB / 20}
    assert measured.bytes_per_s == 2 * MIB
    assert offset_planning.measure(segments[1:], 2.0, {}).bytes_per_s is None


def test_a_slow_path_is_measured_however_little_was_read_and_a_short_micro_batch_is_not() -> None:
    target = TargetPartition("orders", "t", 0)
    little = [Segment(source=A, source_start=0, source_end=9, kind=SegmentKind.DATA, target=target, size_bytes=40_000)]
    assert offset_planning.measure(little, 12.0, {}, slot_seconds=10.0).bytes_per_s == 4_000
    assert offset_planning.measure(little, 12.0, {}, slot_seconds=1.0).bytes_per_s is None
    assert offset_planning.measure([], 12.0, {}, slot_seconds=10.0).bytes_per_s is None


def test_what_came_behind_the_first_responses_alone_is_the_rate_where_it_is_large_enough() -> None:
    target = TargetPartition("orders", "t", 0)
    much = [Segment(source=A, source_start=0, source_end=9, kind=SegmentKind.DATA, target=target, size_bytes=64 * MIB)]
    steady = SteadyCopying.of_slots(
        [
            SlotResult(0, None, (), steady=SteadyCopying(30 * MIB, 0.25)),
            SlotResult(1, None, (), steady=SteadyCopying(20 * MIB, 0.5)),
            SlotResult(2, None, ()),
        ]
    )
    assert offset_planning.measure(much, 2.0, {}, steady=steady).bytes_per_s == 100 * MIB
    assert offset_planning.measure(much, 2.0, {}, steady=SteadyCopying(10_000, 0.001)).bytes_per_s == 32 * MIB
    assert SteadyCopying.of_slots([SlotResult(2, None, ())]) is None


@pytest.mark.slow
@given(_OFFSETS, _OFFSETS)
def test_what_moved_is_known_to_both_and_differs(start: dict[SourcePartition, int], ends: dict[SourcePartition, int]) -> None:
    both = start.keys() & ends.keys()
    assert offset_planning.changed_offsets(start, ends) == {
        source: ends[source] for source in both if ends[source] != start[source]
    }
