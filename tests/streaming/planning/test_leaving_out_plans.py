"""The planner and partitions that are broken: Spark is led back, the others move on, and the next try comes by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.planned_sources import (
    A,
    B,
    FakeCluster,
    UnsampledPlanner,
    _cluster,
    _config,
    _deadline,
    _topic,
)

from shallow_mirror.broker.net import PRODUCER_FORGOTTEN
from shallow_mirror.errors import (
    DataLossError,
    LogTruncatedError,
    MirrorError,
    RetriableError,
    TopicAccessError,
    TopicRecreatedError,
)
from shallow_mirror.sinks import Side
from shallow_mirror.streaming.planning import LeftOutPartition, PlannerConfig, planner_state
from shallow_mirror.streaming.planning.left_out_partitions import parse_left_out, write_left_out
from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
from shallow_mirror.types import SourcePartition

SILENT = RetriableError("NETWORK_EXCEPTION", "10.0.0.3:9092 refused the connection")


class Planning:
    """A planner whose clock stands still until it sleeps, or a test lets time pass."""

    def __init__(
        self, folder: Path, cluster: FakeCluster, *, isolates: bool = False, changes: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        self.seconds, self.cluster, self.path = 1000.0, cluster, folder / "left-out.json"
        settings = PlannerConfig.of_mirror(_config(folder), left_out_path=self.path)
        self.settings = replace(settings, isolates=isolates, **changes or {})
        planner = UnsampledPlanner(self.settings, cluster)  # type: ignore[arg-type]
        self.planner = MicroBatchPlanner(
            self.settings,
            planner,
            parallelism=2,
            clock=lambda: self.seconds,
            sleep=self._sleep,
            now_ms=lambda: int(self.seconds * 1000),
            **more,
        )

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def leave_out(self, source: SourcePartition, position: int, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "side": Side.SOURCE, "error_name": "KAFKA_STORAGE_ERROR", "reason": "Fetch", "since_ms": 7, "position": position,
            "tried_at_ms": int(self.seconds * 1000),
        }  # fmt: skip
        write_left_out(self.path, [LeftOutPartition(source=source, **fields | changes)])

    def note(self) -> planner_state.PlannerState:
        note = planner_state.read_state(self.settings.planner_state_path, planner_state.PlannerState)
        assert note is not None
        return note

    def reported(self) -> dict[SourcePartition, str]:
        return {left_out.source: left_out.error_name for left_out in parse_left_out({"partitions": self.note().left_out})}


def test_what_a_micro_batch_left_out_goes_back_while_the_others_move_and_waits_for_its_next_try(tmp_path: Path) -> None:
    planning = Planning(tmp_path, _cluster())
    planning.leave_out(A, 20)
    back = planning.planner.latest({A: 100, B: 30})
    assert back == {A: 20, B: 50}
    assert [
        (planned_range.source, planned_range.start, planned_range.end)
        for planned_range in planning.planner.ranges({A: 100, B: 30}, back)
    ] == [(B, 30, 50)]
    assert planning.planner.latest(back) == back
    planning.seconds += 1.0
    later = planning.planner.latest(back)
    assert later == {A: 100, B: 50}
    assert [
        (planned_range.source, planned_range.start, planned_range.end) for planned_range in planning.planner.ranges(back, later)
    ] == [(A, 20, 100)]


@pytest.mark.parametrize(
    ("tries", "is_definite", "pause_s"), [(1, False, 1), (2, False, 2), (9, False, 30), (1, True, 10), (9, True, 300)]
)
def test_the_pause_before_the_next_try_grows_up_to_a_bound(tmp_path: Path, tries: int, is_definite: bool, pause_s: float) -> None:
    planning = Planning(tmp_path, _cluster())
    planning.leave_out(A, 20, tries=tries, is_definite=is_definite, side=Side.TARGET)
    planning.seconds += pause_s - 0.1
    assert planning.planner.latest({A: 20, B: 50}) == {A: 20, B: 50}
    planning.seconds += 0.2
    assert planning.planner.latest({A: 20, B: 50}) == {A: 100, B: 50}


def test_a_partition_whose_leader_answers_again_is_tried_at_once(tmp_path: Path) -> None:
    planning = Planning(tmp_path, _cluster())
    planning.leave_out(A, 20, tries=9)
    planning.cluster.wrong[A.topic_partition] = SILENT
    assert planning.planner.latest({A: 20, B: 50}) == {A: 20, B: 50}
    del planning.cluster.wrong[A.topic_partition]
    assert planning.planner.latest({A: 20, B: 50}) == {A: 100, B: 50}


def test_a_planned_end_that_the_log_has_lost_is_no_data_loss_where_nothing_behind_it_was_copied(tmp_path: Path) -> None:
    """Spark stands at 130, the map and the log end at 100."""
    planning = Planning(tmp_path, _cluster())
    planning.leave_out(A, 100, error_name="LOG_ENDS_EARLY")
    back = planning.planner.latest({A: 130, B: 50})
    assert back == {A: 100, B: 50}
    assert planning.note().caught_up == (A,)
    assert planning.planner.latest(back) == back
    planning.leave_out(A, 101, error_name="LOG_ENDS_EARLY")
    with pytest.raises(DataLossError, match="truncated"):
        planning.planner.latest({A: 130, B: 50})


@pytest.mark.parametrize("is_leaderless", [True, False])
def test_a_partition_whose_leader_does_not_answer_stays_the_others_move_and_it_is_reported_after_a_while(
    tmp_path: Path, is_leaderless: bool
) -> None:
    planning = Planning(tmp_path, _cluster())
    if is_leaderless:
        planning.cluster.topics["orders"] = _topic("orders", "idA", [-1, 1])
    else:
        planning.cluster.wrong[A.topic_partition] = SILENT
    assert planning.planner.latest({A: 20, B: 30}) == {A: 20, B: 50}
    assert planning.reported() == {}, "an election takes moments"
    planning.seconds += 10
    assert planning.planner.latest({A: 20, B: 50}) == {A: 20, B: 50}
    assert planning.reported() == {A: "LEADER_NOT_AVAILABLE" if is_leaderless else "NETWORK_EXCEPTION"}
    assert planning.note().waiting_for is None
    planning.cluster.wrong.clear()
    planning.cluster.topics["orders"] = _topic("orders", "idA", [1, 1])
    planning.seconds += 30
    assert planning.planner.latest({A: 20, B: 50}) == {A: 100, B: 50}
    assert planning.reported() == {}


def forbidden(planning: Planning) -> None:
    planning.cluster.wrong[A.topic_partition] = TopicAccessError("grant Describe on topic orders", ["orders"])


def truncated(planning: Planning) -> None:
    planning.cluster.offsets[A.topic_partition, -1] = 15


@pytest.mark.parametrize(("breaks", "error_type"), [(forbidden, TopicAccessError), (truncated, LogTruncatedError)])
def test_what_a_person_has_to_mend_ends_the_run_or_is_isolated(
    tmp_path: Path, breaks: Callable[[Planning], None], error_type: type[MirrorError]
) -> None:
    stopping, isolating = Planning(tmp_path, _cluster()), Planning(tmp_path, _cluster(), isolates=True)
    breaks(stopping)
    with pytest.raises(error_type):
        stopping.planner.latest({A: 20, B: 30})
    breaks(isolating)
    assert isolating.planner.latest({A: 20, B: 30}) == {A: 20, B: 50}
    assert isolating.reported() == {A: error_type.__name__}


def test_a_truncated_log_of_an_archive_ends_the_query_unless_it_is_held_at_this_position(tmp_path: Path) -> None:
    def planning(**held: Any) -> Planning:
        changes = {"continues_after_data_loss": True, **held}
        made = Planning(tmp_path, _cluster(), changes=changes)
        truncated(made)
        return made

    assert planning().planner.latest({A: 20, B: 30}) == {A: 20, B: 50}
    assert planning(held_truncations={A: 20}).planner.latest({A: 20, B: 30}) == {A: 20, B: 50}
    for held in ({}, {B: 30}, {A: 19}):
        with pytest.raises(LogTruncatedError, match="the log ends at 15, below the position"):
            planning(held_truncations=held).planner.latest({A: 20, B: 30})


def test_a_last_stable_offset_below_the_position_of_an_archive_is_a_truncation(tmp_path: Path) -> None:
    """An archive has never read above one, so its log was cut, and an open transaction was written since."""
    made = Planning(tmp_path, _cluster(), changes={"always_committed": True})
    truncated(made)
    made.cluster.high_watermarks[A.topic_partition] = 25
    with pytest.raises(LogTruncatedError, match="the log ends at 15, below the position"):
        made.planner.latest({A: 20, B: 30})


def test_where_a_partition_begins_is_never_decided_without_its_leader(tmp_path: Path) -> None:
    planning = Planning(tmp_path, _cluster())
    planning.cluster.wrong[A.topic_partition] = SILENT
    planner = planning.planner._source
    with pytest.raises(RetriableError, match="refused"):
        planner.start_offsets({B: SimpleNamespace(offset=3)}, _deadline())
    assert planner.start_offsets({A: SimpleNamespace(offset=3)}, _deadline()) == {B: 0}


def test_with_available_now_what_was_left_out_is_tried_for_a_minute_before_the_query_ends(tmp_path: Path) -> None:
    planning = Planning(tmp_path, _cluster())
    planning.planner.prepare_available_now()
    planning.leave_out(A, 20, tries=4)
    began = planning.seconds
    assert planning.planner.latest({A: 20, B: 50}) == {A: 100, B: 50}
    assert planning.seconds - began == 10.0
    planning.leave_out(A, 20, tries=9, is_definite=True)
    began = planning.seconds
    assert planning.planner.latest({A: 20, B: 50}) == {A: 20, B: 50}
    assert 40.0 < planning.seconds - began <= 60.0


def test_available_now_waits_anew_for_a_partition_that_was_copied_in_between(tmp_path: Path) -> None:
    """It was waited for earlier in the query, and copied for long then."""
    planning = Planning(tmp_path, _cluster())
    planning.planner.prepare_available_now()
    planning.leave_out(A, 20, since_ms=int(planning.seconds * 1000))
    assert planning.planner.latest({A: 20, B: 50}) == {A: 100, B: 50}
    planning.seconds += 300.0
    planning.leave_out(A, 60, since_ms=int(planning.seconds * 1000))
    assert planning.planner.latest({A: 60, B: 50}) == {A: 100, B: 50}


@pytest.mark.slow
def test_available_now_waits_for_a_partition_that_is_written_to_once_earlier_requests_cannot_arrive(tmp_path: Path) -> None:
    """Every start begins to wait anew: runs that end after a minute would never write to it."""
    planning = Planning(tmp_path, _cluster())
    planning.planner.prepare_available_now()
    began = planning.seconds
    for tries in range(1, 31):
        planning.leave_out(A, 20, tries=tries, side=Side.TARGET, error_name=PRODUCER_FORGOTTEN)
        assert planning.planner.latest({A: 20, B: 50}) == {A: 100, B: 50}
    assert planning.seconds - began > 600


def test_available_now_waits_a_minute_for_every_leader_before_it_fixes_its_end(tmp_path: Path) -> None:
    planning = Planning(tmp_path, _cluster())
    planning.cluster.wrong[A.topic_partition] = SILENT
    began = planning.seconds
    planning.planner.prepare_available_now()
    assert planning.seconds - began == 60.0
    assert planning.planner.latest({A: 20, B: 30}) == {A: 20, B: 50}


@pytest.mark.parametrize("is_leaderless", [True, False])
def test_what_available_now_ends_without_is_reported_by_its_first_plan(tmp_path: Path, is_leaderless: bool) -> None:
    """The query may end before an election would be over."""
    planning = Planning(tmp_path, _cluster())
    if is_leaderless:
        planning.cluster.topics["orders"] = _topic("orders", "idA", [-1, 1])
    else:
        planning.cluster.wrong[A.topic_partition] = SILENT
    began = planning.seconds
    planning.planner.prepare_available_now()
    assert planning.seconds - began == 60.0
    assert planning.planner.latest({A: 20, B: 50}) == {A: 20, B: 50}
    assert planning.reported() == {A: "LEADER_NOT_AVAILABLE" if is_leaderless else "NETWORK_EXCEPTION"}


def test_available_now_waits_for_an_election(tmp_path: Path) -> None:
    planning = Planning(tmp_path, _cluster())
    planning.cluster.topics["orders"] = _topic("orders", "idA", [-1, 1])

    def elect(seconds: float) -> None:
        planning.seconds += seconds
        planning.cluster.topics["orders"] = _topic("orders", "idA", [1, 1])

    planning.planner._sleep = elect
    planning.planner.prepare_available_now()
    assert planning.planner.latest({A: 20, B: 50}) == {A: 100, B: 50}


@pytest.mark.parametrize("is_gone", [True, False])
def test_available_now_waits_for_a_broker_to_list_the_topics_of_the_map(tmp_path: Path, is_gone: bool) -> None:
    """One that has only just started may leave out a topic: the query would end without it."""
    planning = Planning(tmp_path, _cluster(), recorded={A: 20, B: 30})
    orders, began = planning.cluster.topics.pop("orders"), planning.seconds

    def wait(seconds: float) -> None:
        planning.seconds += seconds
        if not is_gone:
            planning.cluster.topics["orders"] = orders

    planning.planner._sleep = wait
    planning.planner.prepare_available_now()
    assert planning.seconds - began == (60.0 if is_gone else 1.0)
    expected = {A: 20, B: 30} if is_gone else {A: 100, B: 50}
    assert planning.planner.latest({A: 20, B: 30}) == expected


def test_available_now_does_not_wait_for_topics_that_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "paused.json"
    planning = Planning(tmp_path, _cluster(), changes={"paused_path": path})
    planner_state.write_paused_topics(path, {"orders"})
    planning.cluster.topics["orders"] = _topic("orders", "idA", [-1, 1])
    began = planning.seconds
    planning.planner.prepare_available_now()
    assert planning.seconds == began


def test_available_now_does_not_end_where_a_plan_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without progress would be its end, and nothing of the others was copied."""
    planning = Planning(tmp_path, _cluster())
    planning.planner.prepare_available_now()

    def silent(*_asked: object) -> None:
        raise SILENT

    monkeypatch.setattr(planning.cluster, "list_offsets", silent)
    with pytest.raises(RetriableError, match="refused"):
        planning.planner.latest({A: 101, B: 30})


def test_a_topic_that_was_created_again_ends_the_query_or_is_isolated_and_what_has_its_name_does_not_enter(
    tmp_path: Path,
) -> None:
    again = A._replace(topic_id="idB")
    for isolates in (False, True):
        planning = Planning(tmp_path, _cluster(), isolates=isolates, changes={"isolates_recreated": isolates})
        planning.cluster.topics["orders"] = _topic("orders", "idB", [1, 1])
        if not isolates:
            with pytest.raises(TopicRecreatedError, match="idA became idB"):
                planning.planner.latest({A: 20, B: 30})
            continue
        for _ in range(2):
            assert planning.planner.latest({A: 20, B: 30}) == {A: 20, B: 30}
        assert planning.reported() == {again: "TopicRecreatedError", B._replace(topic_id="idB"): "TopicRecreatedError"}


@pytest.mark.parametrize("isolates", [False, True])
def test_a_topic_that_was_created_again_while_it_is_paused_waits_until_it_is_resumed(tmp_path: Path, *, isolates: bool) -> None:
    path, cluster = tmp_path / "paused.json", _cluster()
    other = SourcePartition("orders-2", "id2", 0)
    cluster.topics |= {"orders": _topic("orders", "idB", [1, 1]), "orders-2": _topic("orders-2", "id2", [1])}
    cluster.offsets[other.topic_partition, -1] = 5
    changes = {"isolates_recreated": isolates, "paused_path": path}
    planning = Planning(tmp_path, cluster, isolates=isolates, changes=changes)
    planner_state.write_paused_topics(path, {"orders"})
    start = {A: 20, B: 30, other: 0}
    for _ in range(2):
        assert planning.planner.latest(start) == {**start, other: 5}
    assert planning.reported() == {}
    planner_state.write_paused_topics(path, ())
    if isolates:
        assert planning.planner.latest(start) == {**start, other: 5}
        assert set(planning.reported().values()) == {"TopicRecreatedError"}
        return
    with pytest.raises(TopicRecreatedError, match="idA became idB"):
        planning.planner.latest(start)


def test_a_start_gives_no_first_position_to_a_topic_that_was_created_again_where_it_is_isolated_or_not_copied(
    tmp_path: Path,
) -> None:
    cluster = _cluster()
    cluster.topics["orders"] = _topic("orders", "idB", [1, 1])
    cluster.topics["orders-2"] = _topic("orders-2", "id2", [1])
    new = SourcePartition("orders-2", "id2", 0)
    cluster.offsets |= {(new.topic_partition, -1): 5, (new.topic_partition, -2): 0}
    settings = replace(PlannerConfig.of_mirror(_config(tmp_path)), isolates=True, isolates_recreated=True)
    not_copied = replace(PlannerConfig.of_mirror(_config(tmp_path)), not_copied=frozenset({"orders"}))
    positions = {source: SimpleNamespace(offset=7) for source in (A, B)}
    for waiting in (settings, not_copied):
        offsets = UnsampledPlanner(waiting, cluster)  # type: ignore[arg-type]
        assert offsets.start_offsets(positions, _deadline()) == {new: 0}
