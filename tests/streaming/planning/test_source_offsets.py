from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.planned_sources import A, B, FakeCluster, UnsampledPlanner, _cluster, _config, _deadline, _topic

from shallow_mirror.errors import ConfigError, DataLossError, RetriableError, TopicRecreatedError
from shallow_mirror.streaming.planning import PlannerConfig, offset_planning, planner_state
from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
from shallow_mirror.streaming.planning.source_offsets import FirstBatch, SourceOffsets
from shallow_mirror.types import LATEST_TIMESTAMP, IsolationLevel, SourcePartition

MIB = 1 << 20


def _planner(folder: Path, cluster: FakeCluster, **read: Any) -> UnsampledPlanner:
    return UnsampledPlanner(PlannerConfig.of_mirror(_config(folder, **read)), cluster)  # type: ignore[arg-type]


def _micro_batches(folder: Path, cluster: FakeCluster, **read: Any) -> MicroBatchPlanner:
    clock = iter(range(10**6))
    return MicroBatchPlanner(
        PlannerConfig.of_mirror(_config(folder, **read)),
        _planner(folder, cluster, **read),
        parallelism=2,
        clock=lambda: float(next(clock)),
        sleep=lambda seconds: None,
        now_ms=lambda: 5,
    )


def test_ends_are_of_included_topics_with_a_leader(tmp_path: Path) -> None:
    cluster = _cluster()
    cluster.topics["orders"] = _topic("orders", "idA", [1, -1])
    assert _planner(tmp_path, cluster).log_ends(_deadline()).ends == {A: 100}
    assert cluster.asked == [IsolationLevel.READ_COMMITTED]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", {A: 10, B: 0}), ("latest", {A: 100, B: 50}), ("1970-01-01T00:00:01Z", {A: 38, B: 50})],
)
def test_the_first_run_begins_where_the_file_says_moved_down_to_a_batch(
    tmp_path: Path, start: str, expected: dict[Any, int]
) -> None:
    planner = _planner(tmp_path, _cluster(), start=start)
    planner.batches = {A: FirstBatch(base_offset=38, next_offset=48, size_bytes=500)}
    assert planner.start_offsets({}, _deadline()) == expected


def test_what_an_earlier_process_planned_of_a_topic_that_is_gone_is_left_out(tmp_path: Path) -> None:
    gone = SourcePartition("orders.gone", "idG", 0)
    planner = _micro_batches(tmp_path, _cluster())
    assert [planned_range.source for planned_range in planner.ranges({gone: 3, A: 10}, {gone: 9, A: 20})] == [A]


def test_all_topics_are_listed_once_in_the_discovery_interval_and_in_between_those_that_are_mirrored(tmp_path: Path) -> None:
    cluster, now = _cluster(), [0.0]
    cluster.topics |= {f"other.{number}": _topic(f"other.{number}", f"id{number}", [1]) for number in range(10)}
    planner = SourceOffsets(PlannerConfig.of_mirror(_config(tmp_path)), cluster, clock=lambda: now[0])  # type: ignore[arg-type]
    added = SourcePartition("orders", "idA", 2)
    cluster.offsets[added.topic_partition, -1] = 7
    assert planner.log_ends(_deadline()).ends == {A: 100, B: 50}
    cluster.topics["orders"] = _topic("orders", "idA", [1, 1, 1])
    assert planner.log_ends(_deadline()).ends == {A: 100, B: 50, added: 7}
    later = SourcePartition("orders.new", "idN", 0)
    cluster.topics["orders.new"], cluster.offsets[later.topic_partition, -1] = _topic("orders.new", "idN", [1]), 3
    now[0] = 29.0
    assert later not in planner.log_ends(_deadline()).ends
    now[0] = 30.0
    assert planner.log_ends(_deadline()).ends == {A: 100, B: 50, added: 7, later: 3}
    assert cluster.listed == [None, ("orders",), ("orders",), None]


def test_a_topic_that_was_mirrored_once_is_asked_for_to_the_end(tmp_path: Path) -> None:
    cluster, now = _cluster(), [0.0]
    cluster.topics |= {f"other.{number}": _topic(f"other.{number}", f"id{number}", [1]) for number in range(10)}
    planner = SourceOffsets(PlannerConfig.of_mirror(_config(tmp_path)), cluster, clock=lambda: now[0])  # type: ignore[arg-type]
    planner.log_ends(_deadline())
    orders, now[0] = cluster.topics.pop("orders"), 30.0
    assert planner.log_ends(_deadline()).ends == {}
    cluster.topics["orders"] = orders
    assert planner.log_ends(_deadline()).ends == {A: 100, B: 50}


def test_later_partitions_begin_at_their_log_start(tmp_path: Path) -> None:
    planner = _planner(tmp_path, _cluster(), start="latest")
    assert planner.start_offsets({B: SimpleNamespace(offset=3)}, _deadline()) == {A: 10}


def test_a_recreated_topic_stops_the_start(tmp_path: Path) -> None:
    positions = {SourcePartition("orders", "old", 0): SimpleNamespace(offset=3)}
    with pytest.raises(DataLossError, match="created again"):
        _planner(tmp_path, _cluster()).start_offsets(positions, _deadline())


def test_a_recreated_topic_stops_the_query_or_enters_as_new(tmp_path: Path) -> None:
    start = {SourcePartition("orders", "old", 0): 3}
    with pytest.raises(TopicRecreatedError, match="topic id old became idA"):
        _micro_batches(tmp_path, _cluster()).latest(start)
    planner = _micro_batches(tmp_path, _cluster(), on_data_loss="continue")
    assert planner.latest(start) == {A: 10, B: 0}
    assert planner.ranges(start, {A: 10, B: 0}) == ()


def test_what_an_earlier_process_planned_of_a_recreated_topic_is_left_out(tmp_path: Path) -> None:
    old = SourcePartition("orders", "old", 0)
    planner = _micro_batches(tmp_path, _cluster(), on_data_loss="continue")
    assert [planned_range.source for planned_range in planner.ranges({old: 3, A: 10}, {old: 9, A: 20})] == [A]


def test_a_stream_whose_state_is_not_read_warns_of_an_unreachable_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, now = _cluster(), [0.0]
    settings = replace(PlannerConfig.of_mirror(_config(tmp_path)), planner_state_path=None)
    planner = MicroBatchPlanner(settings, _planner(tmp_path, cluster), parallelism=1, clock=lambda: now[0])
    cluster.away = True
    warned = []
    for now[0] in (0.0, 9.0, 11.0, 40.0, 70.0, 72.0):
        assert planner.latest({A: 20}) == {A: 20}
        warned.append(len(caplog.records))
    assert warned == [0, 0, 1, 1, 1, 2]
    assert "nothing new was planned for 72 s, the source does not answer: NETWORK_EXCEPTION" in caplog.records[-1].getMessage()
    cluster.away = False
    assert planner.latest({A: 20}) == {A: 100, B: 0}
    assert caplog.records[-1].getMessage() == "the source answers again, after 72 s"


def test_a_source_that_is_unreachable_is_waited_for_and_noted(tmp_path: Path) -> None:
    cluster = _cluster()
    planner = _micro_batches(tmp_path, cluster)
    cluster.away = True
    assert planner.latest({A: 20}) == {A: 20}
    path = planner_state.planner_state_path(_config(tmp_path).checkpoint)
    note = planner_state.read_state(path, planner_state.PlannerState)
    assert note is not None
    assert note.waiting_for is not None
    assert "refused the connection" in note.waiting_for
    assert (note.since_ms, note.error_name) == (5, "NETWORK_EXCEPTION")
    cluster.away = False
    assert planner.latest({A: 20}) == {A: 100, B: 0}
    note = planner_state.read_state(path, planner_state.PlannerState)
    assert note is not None
    assert (note.waiting_for, note.since_ms, note.error_name, note.ends) == (None, None, None, {A: 100})


def test_new_partitions_enter_first_and_move_next(tmp_path: Path) -> None:
    planner = _micro_batches(tmp_path, _cluster())
    entered = planner.latest({A: 100})
    assert entered == {A: 100, B: 0}
    assert planner.ranges({A: 100}, entered) == ()
    moved = planner.latest(entered)
    assert moved == {A: 100, B: 50}
    (only,) = planner.ranges(entered, moved)
    assert (only.source, only.start, only.end) == (B, 0, 50)


def test_the_driver_can_read_what_was_planned_and_the_plan_holds_where_it_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "planned.json"
    planner = _micro_batches(tmp_path, _cluster())
    planner._config = replace(planner._config, planned_path=path)
    ranges = planner.ranges({A: 0, B: 0}, {A: 100, B: 50})
    assert {planned_range.source for planned_range in ranges} == {A, B}
    assert planner_state.read_planned_ranges(path) == ranges
    path.unlink()
    path.mkdir()
    assert planner.ranges({A: 0}, {A: 100}) != ()
    assert "the ranges of the micro-batch were not written" in caplog.text


def test_sampled_and_measured_sizes_bound_the_micro_batch(tmp_path: Path) -> None:
    cluster = _cluster()
    planner = _micro_batches(tmp_path, cluster)
    planner._source.batches = {A: FirstBatch(base_offset=0, next_offset=2, size_bytes=16 * MIB)}  # type: ignore[attr-defined]
    assert planner.latest({A: 0})[A] == 8
    measured = offset_planning.Measurements(bytes_per_offset={A: 4.0 * MIB}, bytes_per_s=MIB * 80 / 15)
    planner_state.write_measurements(planner_state.measurements_path(_config(tmp_path).checkpoint), measured)
    assert planner.latest({A: 0})[A] == 20


def test_available_now_ends_at_the_ends_of_its_start(tmp_path: Path) -> None:
    cluster = _cluster()
    planner = _micro_batches(tmp_path, cluster)
    planner.prepare_available_now()
    cluster.offsets[A.topic_partition, -1] = 1000
    first = planner.latest({A: 20, B: 0})
    assert first == {A: 100, B: 50}
    assert planner.latest(first) == first


def test_available_now_finds_a_truncated_log_too(tmp_path: Path) -> None:
    planner = _micro_batches(tmp_path, _cluster())
    planner.prepare_available_now()
    with pytest.raises(DataLossError, match="truncated"):
        planner.latest({A: 101})


def test_a_start_by_time_is_never_above_the_end(tmp_path: Path) -> None:
    cluster = _cluster()
    cluster.offsets[A.topic_partition, 1000] = 120
    assert _planner(tmp_path, cluster, start="1970-01-01T00:00:01Z").start_offsets({}, _deadline())[A] == 100


def test_available_now_without_a_source_is_an_error_not_an_end(tmp_path: Path) -> None:
    cluster = _cluster()
    cluster.away = True
    with pytest.raises(RetriableError):
        _micro_batches(tmp_path, cluster).prepare_available_now()


def test_a_truncated_log_is_data_loss_after_several_looks(tmp_path: Path) -> None:
    with pytest.raises(DataLossError, match="truncated"):
        _micro_batches(tmp_path, _cluster()).latest({A: 101})


@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_position_above_the_last_stable_offset_waits_and_is_no_truncation(
    tmp_path: Path, is_available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was reached with read_uncommitted, in a transaction that is still open."""
    cluster = _cluster()
    cluster.high_watermarks[A.topic_partition] = 105
    planner = _micro_batches(tmp_path, cluster)
    if is_available_now:
        planner.prepare_available_now()
    for _ in range(3):
        assert planner.latest({A: 101, B: 20}) == {A: 101, B: 50}
    assert [record.getMessage() for record in caplog.records] == [
        "orders-0: the position 101 is above the last stable offset 100: records of an open transaction were copied with "
        "read_uncommitted. Nothing is copied until that transaction ends"
    ]
    with pytest.raises(DataLossError, match="the log ends at 105, below the position"):
        planner.latest({A: 106, B: 50})


def test_behind_an_open_transaction_a_mirror_goes_on_when_it_has_ended(tmp_path: Path) -> None:
    cluster = _cluster()
    cluster.high_watermarks[A.topic_partition] = 105
    planner = _micro_batches(tmp_path, cluster)
    assert planner.latest({A: 101, B: 50}) == {A: 101, B: 50}
    cluster.offsets[A.topic_partition, -1] = 106
    assert planner.latest({A: 101, B: 50}) == {A: 106, B: 50}


def test_a_plan_of_read_uncommitted_is_done_up_to_the_last_stable_offset_and_planned_again_behind_it(tmp_path: Path) -> None:
    cluster = _cluster()
    cluster.high_watermarks[A.topic_partition] = 105
    planner = _micro_batches(tmp_path, cluster)
    planner._recorded = {A: 90, B: 20}
    assert {each.source: each.end for each in planner.ranges({A: 90, B: 20}, {A: 105, B: 50})} == {A: 100, B: 50}
    assert planner.latest({A: 105, B: 50}) == {A: 90, B: 50}
    assert planner.latest({A: 90, B: 50}) == {A: 100, B: 50}


def test_a_plan_of_which_a_topic_is_left_out_is_planned_again_once_a_broker_lists_it(tmp_path: Path) -> None:
    """A broker that has only just started may leave out a topic once."""
    cluster = _cluster()
    planner = _micro_batches(tmp_path, cluster)
    planner._recorded = {A: 20, B: 30}
    orders = cluster.topics.pop("orders")
    assert planner.ranges({A: 20, B: 30}, {A: 100, B: 50}) == ()
    cluster.topics["orders"] = orders
    assert planner.latest({A: 100, B: 50}) == {A: 20, B: 30}
    planner._source.discover()
    assert planner.latest({A: 20, B: 30}) == {A: 100, B: 50}


def test_a_truncated_log_stays_at_its_position_until_it_reaches_it_again_where_the_mirror_may_continue(tmp_path: Path) -> None:
    cluster = _cluster()
    planner = _micro_batches(tmp_path, cluster, on_data_loss="continue")
    path = planner_state.planner_state_path(_config(tmp_path).checkpoint)
    for end in (100, 90):
        cluster.offsets[A.topic_partition, -1] = end
        assert planner.latest({A: 101, B: 20}) == {A: 101, B: 50}
        note = planner_state.read_state(path, planner_state.PlannerState)
        assert note is not None
        (left,) = note.left_out
        assert left["error_name"] == "LogTruncatedError"
        assert f"orders-0: expected offset 101: the log ends at {end}, below the position" in left["reason"]
    cluster.offsets[A.topic_partition, -1] = 120
    assert planner.latest({A: 101, B: 50}) == {A: 120, B: 50}
    note = planner_state.read_state(path, planner_state.PlannerState)
    assert note is not None
    assert (note.left_out, note.ends) == ((), {A: 120})


def test_a_log_that_is_known_to_be_truncated_is_looked_at_once_a_plan(tmp_path: Path) -> None:
    cluster = _cluster()
    planner = _micro_batches(tmp_path, cluster, on_data_loss="continue")
    planner.latest({A: 101, B: 20})
    pauses: list[float] = []
    planner._sleep = pauses.append
    planner.latest({A: 101, B: 20})
    assert pauses == []
    planner.latest({A: 101, B: 51})
    assert len(pauses) == 5


def test_available_now_ends_without_a_truncated_log_where_the_mirror_may_continue(tmp_path: Path) -> None:
    planner = _micro_batches(tmp_path, _cluster(), on_data_loss="continue")
    planner.prepare_available_now()
    assert planner.latest({A: 101, B: 20}) == {A: 101, B: 50}
    assert planner.latest({A: 101, B: 50}) == {A: 101, B: 50}


def test_a_topic_created_again_between_two_looks_is_named_as_that(tmp_path: Path) -> None:
    cluster = _cluster()
    planner = _micro_batches(tmp_path, cluster)

    def create_again(_: float) -> None:
        cluster.topics["orders"] = _topic("orders", "idB", [1, 1])

    planner._sleep = create_again
    cluster.offsets[A.topic_partition, -1] = 0  # listed by name already, while the metadata is still the old topic's
    with pytest.raises(DataLossError, match="idA became idB"):
        planner.latest({A: 20, B: 0})


def test_ranges_of_a_plan_of_an_earlier_process_need_no_source(tmp_path: Path) -> None:
    cluster = _cluster()
    cluster.away = True
    (only,) = _micro_batches(tmp_path, cluster).ranges({A: 5}, {A: 9})
    assert (only.start, only.end) == (5, 9)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "null", '{"at_ms": "x"}', '{"bytes_per_s": 1, "bytes_per_offset": [[1]]}', "\x00"]
)
def test_damaged_notes_are_no_notes(tmp_path: Path, content: str) -> None:
    path = tmp_path / "note.json"
    path.write_text(content, encoding="utf-8")
    assert planner_state.read_state(path, planner_state.PlannerState) is None
    assert planner_state.read_measurements(path) is None
    assert planner_state.read_state(None, planner_state.PlannerState) is None


def test_the_first_batch_of_each_partition_is_taken_from_header_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def part(source: SourcePartition, *bases: int) -> Any:
        index = SimpleNamespace(
            headers=np.array([(base,) for base in bases], dtype=[("base_offset", "i8")]),
            last_offset=np.array([base + 9 for base in bases]),
            size_bytes=np.array([500 for _ in bases]),
        )
        index_with_len = type("Index", (), {"__len__": lambda self: len(bases), **vars(index)})()
        return SimpleNamespace(topic_partition=source.topic_partition, index=index_with_len)

    asked: list[Any] = []

    def reader(cluster: object, ranges: Any, **options: Any) -> Any:
        asked.extend((read_range.topic_partition, read_range.position, read_range.end) for read_range in ranges)
        yield (part(A), part(B, 3, 13))
        yield (part(A, 38, 48),)
        raise RetriableError("DEADLINE", "too late")

    monkeypatch.setattr("shallow_mirror.streaming.planning.source_offsets.RangeReader", reader)
    planner = SourceOffsets(PlannerConfig.of_mirror(_config(tmp_path)), _cluster())  # type: ignore[arg-type]
    listing = planner.log_ends(_deadline())
    assert planner.sample({A: 40, B: 5}, listing, _deadline()) == {A: 50.0, B: 50.0}
    assert asked == [(A.topic_partition, 40, 41), (B.topic_partition, 5, 6)]
    assert planner.sample({A: 100}, listing, _deadline()) == {}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("latest", {A: 100, B: 50}),
        ("1970-01-01T00:00:01Z", {A: 38, B: 50}),
        ({0: 40, 1: 7}, {A: 38, B: 7}),
        ("earliest", {A: 10, B: 0}),
    ],
)
def test_a_topic_begins_where_the_first_rule_that_matches_says(tmp_path: Path, rule: Any, expected: dict[Any, int]) -> None:
    topics = {"start": {"other": "latest", "ord.*": rule, "orders": "earliest"}}
    planner = _planner(tmp_path, _cluster(), topics=topics)
    planner.batches = {A: FirstBatch(base_offset=38, next_offset=48, size_bytes=500)}
    assert planner.start_offsets({}, _deadline()) == expected
    later = {SourcePartition("orders.known", "idK", 0): SimpleNamespace(offset=3)}
    assert planner.start_offsets(later, _deadline()) == expected
    assert planner.start_offsets(later, _deadline(), is_start=False) == {A: 10, B: 0}


def test_what_appears_after_a_start_that_found_no_topic_begins_at_its_log_start(tmp_path: Path) -> None:
    planner = _planner(tmp_path, _cluster(), start="latest")
    assert planner.start_offsets({}, _deadline(), is_start=False) == {A: 10, B: 0}


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"start": "latest"}, True),
        ({"start": "1970-01-01T00:00:01Z"}, True),
        ({"start": "earliest"}, False),
        ({"topics": {"start": {"orders": "latest"}}}, True),
        ({"start": "latest", "topics": {"start": {"orders": "earliest"}}}, False),
    ],
)
def test_the_first_start_waits_for_a_leader_of_what_does_not_begin_at_its_log_start(
    tmp_path: Path, settings: dict[str, Any], waits: bool
) -> None:
    """Once it has a leader it would be new, and begin at its log start."""
    cluster = _cluster()
    cluster.topics["orders"] = _topic("orders", "idA", [-1, 1])
    planner = _planner(tmp_path, cluster, **settings)
    if not waits:
        assert planner.start_offsets({}, _deadline()).keys() == {B}
        return
    with pytest.raises(RetriableError, match="orders-0 has no leader"):
        planner.start_offsets({}, _deadline())
    mirrored = {SourcePartition("orders.known", "idK", 0): SimpleNamespace(offset=3), B: SimpleNamespace(offset=3)}
    assert planner.start_offsets(mirrored, _deadline()) == {}, "others that are copied do not wait"


def test_what_the_map_knows_wins_over_the_rules_and_its_new_partitions_begin_at_their_log_start(tmp_path: Path) -> None:
    planner = _planner(tmp_path, _cluster(), topics={"start": {"orders": "latest"}})
    assert planner.start_offsets({B: SimpleNamespace(offset=3)}, _deadline()) == {A: 10}


def test_explicit_starts_that_the_source_does_not_have_are_refused_together(tmp_path: Path) -> None:
    planner = _planner(tmp_path, _cluster(), topics={"start": {"orders": {0: 9, 7: 1}}})
    with pytest.raises(ConfigError) as caught:
        planner.start_offsets({}, _deadline())
    assert caught.value.problems == (
        "topics.start: orders: offset 9 of orders-0: the source has 10 to 100",
        "topics.start: orders: partition orders-1 has no offset there: add it",
        "topics.start: orders: orders has no partition 7, or it has no leader",
    )


def _stream(cluster: FakeCluster, *, clock: Callable[[], float] = lambda: 0.0, **settings: Any) -> MicroBatchPlanner:
    plan = PlannerConfig(include=("orders",), micro_batch_bytes=MIB, slots=2, request_timeout_ms=1000, **settings)
    planner = UnsampledPlanner(plan, cluster)  # type: ignore[arg-type]
    return MicroBatchPlanner(plan, planner, parallelism=2, clock=clock, sleep=lambda seconds: None)


def test_a_new_stream_refuses_topics_that_are_not_there_a_restarted_one_continues() -> None:
    planner = _stream(_cluster(), required_topics=("orders", "gone", "absent"))
    with pytest.raises(ConfigError) as caught:
        planner.initial()
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "subscribe: there is no topic absent",
        "subscribe: there is no topic gone",
    ]
    assert planner.latest({A: 20, B: 50}) == {A: 100, B: 50}
    assert _stream(_cluster(), required_topics=("orders",)).initial() == {A: 10, B: 0}
    assert _stream(FakeCluster({}, {})).initial() == {}


@pytest.mark.parametrize("is_elected", [True, False])
def test_a_new_stream_begins_at_the_ends_of_all_logs_also_of_one_that_has_no_leader_for_a_moment(is_elected: bool) -> None:
    """It would begin at its log start once it has a leader."""
    seconds, cluster = [0.0], _cluster()
    cluster.topics["orders"] = _topic("orders", "idA", [-1, 1])

    def wait() -> None:
        seconds[0] += 0.3
        if is_elected:
            cluster.topics["orders"] = _topic("orders", "idA", [1, 1])

    cluster.on_pause = wait
    planner = _stream(cluster, clock=lambda: seconds[0], start_timestamp_ms=LATEST_TIMESTAMP)
    if is_elected:
        assert planner.initial() == {A: 100, B: 50}
    else:
        with pytest.raises(RetriableError, match="orders-0 has no leader"):
            planner.initial()
        assert _stream(cluster).initial() == {B: 0}, "from the log start on it may follow"


def test_given_starts_may_be_at_the_end_of_the_log_and_not_beyond_it() -> None:
    a, b = A.topic_partition, B.topic_partition
    assert _stream(_cluster(), start_offsets={a: 100, b: -1}).initial() == {A: 100, B: 50}
    with pytest.raises(ConfigError) as caught:
        _stream(_cluster(), start_offsets={a: 101, b: 51}).initial()
    assert caught.value.problems == (
        "startingOffsets: orders-0: 101 is beyond the log's end 100, as read_committed sees it",
        "startingOffsets: orders-1: 51 is beyond the log's end 50, as read_committed sees it",
    )


def test_nothing_is_planned_of_a_paused_topic(tmp_path: Path) -> None:
    path = tmp_path / "paused.json"
    settings = PlannerConfig.of_mirror(_config(tmp_path), paused_path=path)
    planner = MicroBatchPlanner(settings, _planner(tmp_path, _cluster()), parallelism=2, clock=lambda: 0.0)
    planner_state.write_paused_topics(path, {"orders"})
    assert planner.latest({A: 20, B: 0}) == {A: 20, B: 0}
    planner_state.write_paused_topics(path, {"orders.other"})
    assert planner.latest({A: 20, B: 0}) == {A: 100, B: 50}


def test_a_replay_leaves_out_what_is_paused_since_and_copies_it_from_its_position_after_the_resume(tmp_path: Path) -> None:
    path = tmp_path / "paused.json"
    settings = PlannerConfig.of_mirror(_config(tmp_path), paused_path=path)
    source, recorded = _planner(tmp_path, _cluster()), {A: 20, B: 0}
    planner = MicroBatchPlanner(settings, source, parallelism=2, recorded=recorded, clock=lambda: 0.0)
    planner_state.write_paused_topics(path, {"orders"})
    assert planner.ranges({A: 20, B: 0}, {A: 100, B: 50}) == ()
    assert planner.ranges({A: 20, B: 0}, {A: 100, B: 50}) == ()
    assert planner.latest({A: 100, B: 50}) == recorded
    assert planner.latest(recorded) == recorded
    planner_state.write_paused_topics(path, ())
    assert planner.latest(recorded) == {A: 100, B: 50}


def test_a_micro_batch_that_this_process_planned_is_done_as_planned_though_its_topic_is_paused_since(tmp_path: Path) -> None:
    path = tmp_path / "paused.json"
    settings = PlannerConfig.of_mirror(_config(tmp_path), paused_path=path)
    planner = MicroBatchPlanner(settings, _planner(tmp_path, _cluster()), parallelism=2, clock=lambda: 0.0)
    planned = planner.latest({A: 20, B: 0})
    planner_state.write_paused_topics(path, {"orders"})
    assert [planned_range.source for planned_range in planner.ranges({A: 20, B: 0}, planned)] == [A, B]


def test_the_driver_sees_that_topics_are_paused_at_the_next_plan_also_where_the_source_does_not_answer(tmp_path: Path) -> None:
    path, cluster = tmp_path / "paused.json", _cluster()
    settings = PlannerConfig.of_mirror(_config(tmp_path), paused_path=path)
    planner = MicroBatchPlanner(settings, _planner(tmp_path, cluster), parallelism=2, clock=lambda: 0.0)
    revision = planner_state.write_paused_topics(path, {"orders"})
    planner.ranges({A: 20, B: 0}, {A: 100, B: 50})
    assert planner_state.read_planned_revision(path) is None
    planner.latest({A: 100, B: 50})
    assert planner_state.read_planned_revision(path) == revision
    later = planner_state.write_paused_topics(path, ())
    cluster.away = True
    planner.latest({A: 100, B: 50})
    assert planner_state.read_planned_revision(path) == later


def test_a_checkpoint_that_is_further_than_the_offset_map_is_led_back_once(tmp_path: Path) -> None:
    settings, recorded = PlannerConfig.of_mirror(_config(tmp_path)), {A: 20, B: 50}
    planner = MicroBatchPlanner(settings, _planner(tmp_path, _cluster()), parallelism=2, recorded=recorded)
    assert planner.latest({A: 100, B: 50}) == recorded
    assert planner.ranges({A: 100, B: 50}, recorded) == ()
    assert planner.latest(recorded) == {A: 100, B: 50}
    assert [
        (planned_range.source, planned_range.start, planned_range.end)
        for planned_range in planner.ranges(recorded, {A: 100, B: 50})
    ] == [(A, 20, 100)]
    assert planner.latest({A: 100, B: 50}) == {A: 100, B: 50}


def test_what_a_planned_micro_batch_reads_anyway_is_not_led_back(tmp_path: Path) -> None:
    settings = PlannerConfig.of_mirror(_config(tmp_path))
    planner = MicroBatchPlanner(settings, _planner(tmp_path, _cluster()), parallelism=2, recorded={A: 20, B: 30})
    planner.ranges({A: 20, B: 50}, {A: 100, B: 50})
    assert planner.latest({A: 100, B: 50}) == {A: 100, B: 30}


def test_with_available_now_a_limited_mirror_waits_instead_of_ending(tmp_path: Path) -> None:
    settings, now = PlannerConfig.of_mirror(_config(tmp_path, write={"bytes_per_second": 10_240})), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    planner = MicroBatchPlanner(settings, _planner(tmp_path, _cluster()), parallelism=2, clock=lambda: now[0], sleep=sleep)
    start: Mapping[SourcePartition, int] = {A: 10, B: 50}
    assert planner.latest(start) == {A: 20, B: 50}
    assert planner.latest({A: 20, B: 50}) == {A: 20, B: 50}
    planner.prepare_available_now()
    assert planner.latest({A: 20, B: 50}) == {A: 30, B: 50}
    assert now[0] >= 1.0
