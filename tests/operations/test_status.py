"""What a status says: of a map and observations in real tables, of the source as a real broker answers."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support.mirror_runs import create_topic, wait_for
from tests.support.status_tables import NOW_MS, RUN, A, B, config, decide, segment, take_over

from shallow_mirror.broker import Cluster, ListedOffset
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation, RunHistory
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations import status
from shallow_mirror.operations.status import total
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.watch import PartitionStatus, SourceView, lag, partition_statuses
from shallow_mirror.streaming.watch.lag import first_missing_ms
from shallow_mirror.types import SegmentKind, SourcePartition


def observed(number: int, **changes: Any) -> MicroBatchObservation:
    made = MicroBatchObservation(
        run_epoch=1,
        micro_batch=number,
        fetched_bytes=2_000_000,
        size_bytes=1_500_000,
        batch_count=10,
        rebuilt_batch_count=4,
        record_count=100 + number,
        dropped_batch_counts={"aborted": 2},
        duration_ms={"RunSlots": 300.0, "Total": 500.0},
        lag_offsets=3,
        settled_at_ms=10_000 + number,
    )
    return replace(made, **changes)


def gather(settings: MirrorConfig, monkeypatch: pytest.MonkeyPatch, view: SourceView | None = None) -> status.StatusReport:
    if view is not None:
        monkeypatch.setattr(status, "query_source", lambda *_, **__: view)
        monkeypatch.setattr(status, "query_target", lambda *_, **__: None)
        monkeypatch.setattr(status, "older_tables", lambda *_, **__: None)
    return status.gather_status(settings, now_ms=lambda: NOW_MS)


def listed(offset: int, timestamp_ms: int) -> ListedOffset:
    return ListedOffset(offset, timestamp_ms, 0)


# --- lag


@pytest.mark.parametrize(
    ("copied_until_ms", "later", "expected"),
    [
        (100, listed(90, 130), 130),  # the source names the first record beyond the position
        (100, listed(95, 130), 130),
        (100, listed(40, 130), 100),  # copied already: timestamps do not rise
        (100, listed(-1, -1), 100),  # nothing is newer than what was copied
        (None, listed(90, 130), 130),
        (None, listed(40, 130), None),
        (100, None, None),
    ],
)
def test_the_first_missing_record_is_as_old_as_the_source_says_or_as_the_last_copied_batch(
    copied_until_ms: int | None, later: ListedOffset | None, expected: int | None
) -> None:
    assert first_missing_ms(90, copied_until_ms, later) == expected


def test_lag_is_none_where_the_source_says_nothing_and_zero_where_it_has_no_more() -> None:
    positions = {A: 90, B: 10}
    assert partition_statuses(positions, {}, SourceView(), NOW_MS) == (
        PartitionStatus(source=A, position=90, end=None, lag_offsets=None, lag_ms=None),
        PartitionStatus(source=B, position=10, end=None, lag_offsets=None, lag_ms=None),
    )
    view = SourceView(ends={A: 100, B: 10}, later={A: listed(90, NOW_MS - 700)})
    assert partition_statuses(positions, {A: 100, B: 100}, view, NOW_MS) == (
        PartitionStatus(source=A, position=90, end=100, lag_offsets=10, lag_ms=700),
        PartitionStatus(source=B, position=10, end=10, lag_offsets=0, lag_ms=0),
    )


def test_a_record_of_the_future_is_not_late_and_an_end_below_the_position_is_no_negative_lag() -> None:
    view = SourceView(ends={A: 100, B: 5}, later={A: listed(90, NOW_MS + 700)})
    first, second = partition_statuses({A: 90, B: 10}, {}, view, NOW_MS)
    assert (first.lag_ms, second.lag_offsets, second.lag_ms) == (0, 0, 0)


def test_a_total_with_an_unknown_part_is_unknown() -> None:
    assert (total([1, 2]), total([]), total([1, None])) == (3, 0, None)


def test_the_last_timestamp_of_a_partition_is_that_of_its_last_batch_that_has_one(tmp_path: Path) -> None:
    owner = take_over(str(tmp_path))
    decide(owner, segment(A, 0, 5, 900), segment(A, 5, 6, 100), segment(B, 0, 1, -1))
    decide(owner, segment(A, 6, 9, None, SegmentKind.GAP))
    positions = OffsetMap.open(str(tmp_path)).positions()
    assert {source: position.max_timestamp_ms for source, position in positions.items()} == {A: 100, B: -1}


# --- the report


def test_before_the_mirror_ever_ran_there_is_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run the mirror once"):
        status.gather_status(config(tmp_path))


def test_a_map_without_rows_is_a_report_without_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    take_over(settings.tables)
    report = gather(settings, monkeypatch, SourceView())
    assert (report.partitions, report.micro_batches) == ((), ())
    assert report.run is not None
    assert (report.run.run_epoch, report.run.host, report.run.pid, report.run.outcome) == (1, "elsewhere", 7, None)


def test_topics_that_are_excluded_now_have_no_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path, topics={"include": ["orders"], "exclude": ["orders"]})
    decide(take_over(settings.tables), segment(A, 0, 90, 100))
    assert gather(settings, monkeypatch, SourceView()).partitions == ()


def test_the_tables_of_another_mirror_are_refused(tmp_path: Path) -> None:
    take_over(config(tmp_path).tables)
    with pytest.raises(ConfigError, match="'m'"):
        status.gather_status(config(tmp_path, mirror="other"))


@pytest.mark.slow
def test_clusters_that_are_unreachable_leave_positions_and_the_report_says_why_the_rest_is_missing(tmp_path: Path) -> None:
    settings = config(tmp_path)
    decide(take_over(settings.tables), segment(A, 0, 90, 100))
    report = status.gather_status(settings)
    assert report.partitions == (PartitionStatus(source=A, position=90, end=None, lag_offsets=None, lag_ms=None),)
    assert report.source_problem is not None
    assert "127.0.0.1:1" in report.source_problem
    assert report.target_problem is not None


def test_rows_that_may_still_be_removed_are_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    owner = take_over(settings.tables)
    decide(owner, segment(A, 0, 90, 100))
    owner.next_decision()
    owner.decide([segment(A, 90, 100, 200)], highest_slot=0)
    (partition,) = gather(settings, monkeypatch, SourceView()).partitions
    assert partition.position == 90


@pytest.mark.slow
def test_the_last_micro_batches_are_shown_with_the_newest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    owner = take_over(settings.tables)
    for number in range(1, 8):
        decide(owner, segment(A, number - 1, number, 100))
        RunHistory(TableStorage(settings.tables).best_effort_tables()).micro_batch(observed(number))
    report = gather(settings, monkeypatch, SourceView())
    assert [micro_batch.micro_batch for micro_batch in report.micro_batches] == [3, 4, 5, 6, 7]
    newest = report.micro_batches[-1]
    assert (newest.record_count, newest.size_bytes, newest.seconds, newest.settled_at_ms) == (107, 1_500_000, 0.5, 10_007)
    assert (newest.raw_batch_count, newest.rebuilt_batch_count, newest.lag_offsets) == (6, 4, 3)
    assert newest.dropped_batch_counts == {"aborted": 2}


def test_damaged_observations_are_no_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(tmp_path)
    decide(take_over(settings.tables), segment(A, 0, 90, 100))
    RunHistory(TableStorage(settings.tables).best_effort_tables()).micro_batch(observed(1))
    for part in (Path(settings.tables) / "micro_batches").glob("*.parquet"):
        part.unlink()
    assert gather(settings, monkeypatch, SourceView()).micro_batches == ()
    assert "could not read the observations in micro_batches" in caplog.text


def test_a_run_that_ended_says_how_and_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    owner = take_over(settings.tables)
    note = planner_state.PlannerState(at_ms=20_000, waiting_for="the source", since_ms=19_000)
    planner_state.write_state(planner_state.planner_state_path(settings.checkpoint), note)
    observations = RunHistory(TableStorage(settings.tables).best_effort_tables(), now_ms=lambda: 30_000)
    observations.run_started(owner.run_epoch, RUN, "0.1.0")
    running = gather(settings, monkeypatch, SourceView())
    assert running.run is not None
    assert (running.run.version, running.run.outcome, running.run.is_over) == ("0.1.0", None, False)
    assert (running.waiting_for, running.waiting_since_ms, running.planned_at_ms) == ("the source", 19_000, 20_000)
    observations.run_ended(owner.run_epoch, RUN, "done")
    ended = gather(settings, monkeypatch, SourceView())
    assert ended.run is not None
    assert (ended.run.started_at_ms, ended.run.ended_at_ms, ended.run.outcome, ended.run.is_over) == (1_000, 30_000, "done", True)
    assert (ended.waiting_for, ended.planned_at_ms) == (None, 20_000)


@pytest.mark.slow
def test_a_start_is_shown_until_it_is_heard_to_plan_or_to_wait_or_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path)
    take_over(settings.tables)
    path, since_ms = planner_state.start_state_path(settings.checkpoint), RUN.started_at_ms + 10

    def shown() -> tuple[str | None, int | None]:
        report = gather(settings, monkeypatch)
        return report.starting, report.starting_since_ms

    assert shown() == (None, None)
    planner_state.write_state(path, planner_state.StartState(step="starting the query over 3 partitions", since_ms=since_ms))
    assert shown() == ("starting the query over 3 partitions", since_ms)
    for at_ms, is_shown in ((since_ms - 1, True), (since_ms, False)):
        note = planner_state.PlannerState(at_ms=at_ms, waiting_for=None, since_ms=None)
        planner_state.write_state(planner_state.planner_state_path(settings.checkpoint), note)
        assert (shown()[0] is not None) is is_shown
    planner_state.write_state(path, planner_state.StartState(step="of the run before", since_ms=RUN.started_at_ms - 1))
    assert shown() == (None, None)


def test_only_the_newest_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    observations = RunHistory(TableStorage(settings.tables).best_effort_tables())
    first = take_over(settings.tables)
    observations.run_started(first.run_epoch, RUN, "0.1.0")
    second = take_over(settings.tables, replace(RUN, run_id="s", pid=8))
    observations.run_ended(first.run_epoch, RUN, "FencedError")
    observations.run_started(second.run_epoch, replace(RUN, run_id="s", pid=8), "0.1.0")
    run = gather(settings, monkeypatch, SourceView()).run
    assert run is not None
    assert (run.run_id, run.pid, run.outcome) == ("s", 8, None)


def test_a_run_on_this_host_is_alive_while_its_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    here = replace(RUN, host=socket.gethostname(), pid=os.getpid())
    take_over(settings.tables, here)
    run = gather(settings, monkeypatch, SourceView()).run
    assert run is not None
    assert run.is_alive is True
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    take_over(settings.tables, replace(here, run_id="s", pid=child))
    run = gather(settings, monkeypatch, SourceView()).run
    assert run is not None
    assert (run.is_alive, run.is_over, run.outcome) == (False, True, None)


# --- a real source


@pytest.mark.brokers
def test_lag_is_that_of_the_first_record_beyond_the_position_on_a_real_source(
    source_cluster: Any, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "PATIENCE_MS", 60_000)  # here a source without a response is a failure, not a status without lag
    bootstrap = source_cluster.bootstrap
    create_topic(bootstrap, topic_name, 3, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": bootstrap})
    for offset in range(10):
        producer.produce(topic_name, b"v", partition=0, timestamp=1_000 * (offset + 1))
        producer.produce(topic_name, b"v", partition=1, timestamp=1_000 * (offset + 1))
        producer.flush()
    settings = config(
        tmp_path, source={"alias": "east", "client": {"bootstrap.servers": bootstrap}}, topics={"include": [topic_name]}
    )
    with_id = Cluster(settings.source.client)
    listed = with_id.metadata([topic_name], Deadline.after_ms(20_000, time.monotonic))
    topic_id = listed.topics[topic_name].topic_id
    with_id.close()
    behind, done, empty = (SourcePartition(topic_name, topic_id, partition) for partition in range(3))
    hanging = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic_name})
    hanging.init_transactions(20)
    hanging.begin_transaction()
    hanging.produce(topic_name, b"v", partition=2, timestamp=NOW_MS - 10_000)
    hanging.flush(20)
    recreated = behind._replace(topic_id="an older incarnation")
    decide(
        take_over(settings.tables, source_cluster_id=listed.cluster_id),
        segment(behind, 0, 4, 4_000),
        segment(done, 0, 10, 10_000),
        segment(empty, 0, 0, None, SegmentKind.GAP),
        segment(recreated, 0, 7, 500),
    )
    report = status.gather_status(settings, now_ms=lambda: NOW_MS)
    actual = {
        partition.source: (partition.position, partition.end, partition.lag_offsets, partition.lag_ms)
        for partition in report.partitions
    }
    assert actual == {
        behind: (4, 10, 6, NOW_MS - 5_000),
        done: (10, 10, 0, 0),
        empty: (0, 1, 1, 10_000),
    }, "what lies behind an open transaction is not copied yet"
    assert report.source_problem is None
    (open_one,) = report.open_transactions
    assert (open_one.source, open_one.first_offset, open_one.wrote_at_ms) == (empty, 0, NOW_MS - 10_000)
    sentence = f"{topic_name}-2 from offset 0: producer id {open_one.producer_id}, last written 10 s ago"
    assert open_one.sentence(report.at_ms) == sentence
    assert report.document()["open_transactions"][0]["partition"] == 2
    hanging.abort_transaction(20)
    wait_for("the markers of the abort", lambda: not status.gather_status(settings).open_transactions)
