"""What a run tells about itself, without Spark and brokers: the line, what it met, and the port it cannot have."""

from __future__ import annotations

import json
import logging
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import archive_runs, restore_runs
from tests.support.observed import OBSERVED
from tests.support.probes import probe
from tests.support.status_tables import NOW_MS, A, B, config, decide, segment, take_over

from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.logs.runs import ProblemKind, read_problems
from shallow_mirror.checkpoints.tables import BestEffortTables, TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    DataLossError,
    FencedError,
    IncompleteRunError,
    MirrorError,
    OlderTablesError,
    RecoverNeededError,
    RetriableError,
)
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.logging_setup import JsonFormatter
from shallow_mirror.operations import status, status_view
from shallow_mirror.sinks import EarlyEnd, Side, UnfinishedRange
from shallow_mirror.sinks.kafka import StalledStep
from shallow_mirror.sinks.micro_batches import MicroBatchReport
from shallow_mirror.sinks.slots import REMEDY_OF_DAMAGE
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.offset_planning import Measurements
from shallow_mirror.streaming.runs import Mirror
from shallow_mirror.streaming.watch import SourceView
from shallow_mirror.streaming.watch.error_hints import problem_of_end, problem_of_retry, problem_of_wait
from shallow_mirror.streaming.watch.health import HealthLimits
from shallow_mirror.streaming.watch.lag_monitor import LagMonitor
from shallow_mirror.streaming.watch.metrics import ClusterSnapshot, Metrics
from shallow_mirror.streaming.watch.micro_batch_summary import ages_s, problems_of, sentence
from shallow_mirror.streaming.watch.reported_run import ReportedRun
from shallow_mirror.streaming.watch.run_reporter import RunReporter
from shallow_mirror.types import SegmentKind, TargetPartition, TopicPartition

STEPS = {"RunSlots": 300.0, "SlowestSlot": 200.0, "Total": 450.0}


def report(*rows: Any, **changes: Any) -> MicroBatchReport:
    return MicroBatchReport(micro_batch=1, rows=rows, fetched_bytes=2_000, duration_ms=STEPS, **changes)


def reporter_of(settings: MirrorConfig) -> tuple[RunReporter, BestEffortTables, Any]:
    owner, store = take_over(settings.tables), TableStorage(settings.tables).best_effort_tables()
    reporter = RunReporter(ReportedRun.of_mirror(settings), RunIdentity.of_this_process())
    reporter.on_takeover(owner, store)
    return reporter, store, owner


def test_a_run_up_to_its_start_that_left_something_out_does_not_end_in_success(tmp_path: Path) -> None:
    reporter, _, owner = reporter_of(config(tmp_path))
    decide(owner, segment(A, 0, 5, NOW_MS))
    error = RetriableError("LEADER_NOT_AVAILABLE", "partition 0 of orders has no leader")
    reporter.left_out.on_micro_batch([UnfinishedRange.of(A, 0, Side.TARGET, error)], owner.positions())
    with pytest.raises(IncompleteRunError, match=r"left out: orders-0 .*has no leader.*status. names the remedies"):
        reporter.on_caught_up(owner.positions())
    reporter.on_caught_up(owner.positions(), ["orders"])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "micro-batch 4: 50 records, 10 batches (8 raw, 2 rebuilt), 0.9 kB in 0.02 s, dropped 3 aborted"),
        (
            {"dropped_batch_counts": {}, "lag_offsets": 1_234, "record_count": 4_567, "size_bytes": 3_400_000},
            "micro-batch 4: 4,567 records, 10 batches (8 raw, 2 rebuilt), 3.4 MB in 0.02 s; 1,234 offsets left",
        ),
    ],
)
def test_the_line_of_a_micro_batch_says_what_became_of_it(changes: dict[str, Any], line: str) -> None:
    assert sentence(replace(OBSERVED, **changes)) == line


def test_a_micro_batch_is_a_line_with_fields_a_row_and_what_its_tasks_met(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reporter, store, owner = reporter_of(config(tmp_path))
    rows = [
        segment(A, 0, 5, NOW_MS - 500),
        segment(A, 5, 9, None, SegmentKind.EXPIRED),
        segment(A, 9, 12, None, SegmentKind.QUARANTINED),
    ]
    decide(owner, *rows)
    quarantined_batch = QuarantinedBatch(
        source=A, source_start=9, source_end=12, target=TargetPartition("orders", "T", 0), error_name="MESSAGE_TOO_LARGE",
        rule="too large", remedy="raise max.message.bytes", batch=b"",
    )  # fmt: skip
    retried = (3, RetriableError("NETWORK_EXCEPTION", "connection to 10.0.0.7:9092 was closed"))
    reporter.on_micro_batch(report(*rows, quarantined=(quarantined_batch,), retried=(retried,)), owner, owner.positions())
    (line,) = [
        json.loads(JsonFormatter().format(record))
        for record in caplog.records
        if record.getMessage().startswith("micro-batch 1: ")
    ]
    assert (
        line["message"]
        == "micro-batch 1: 5 records, 1 batch (1 raw, 0 rebuilt), 0.0 kB in 0.45 s, dropped 1 expired, 1 quarantined"
    )
    assert (line["micro_batch"]["record_count"], line["micro_batch"]["duration_ms"]) == (5, STEPS)
    (row,) = store.read("micro_batches", ())
    assert (row["micro_batch"], row["record_count"], row["fetched_bytes"]) == (1, 5, 2_000)
    problems = {counted_problem.problem.kind: counted_problem.problem for counted_problem in read_problems(store, 1)}
    assert problems.keys() == {ProblemKind.RETRIABLE, ProblemKind.QUARANTINED, ProblemKind.EXPIRED}
    assert str(problems[ProblemKind.QUARANTINED]) == "orders-0: batch at offsets 9 to 11: too large"
    assert problems[ProblemKind.QUARANTINED].remedy == "raise max.message.bytes. Then: shallow-mirror quarantine retry CONF"
    (damaged,) = problems_of(report(quarantined=(replace(quarantined_batch, remedy=REMEDY_OF_DAMAGE),)), [])
    assert damaged.remedy == "It is damaged at the source. Its bytes: shallow-mirror quarantine export CONF DIR"
    reporter.on_caught_up(owner.positions())
    assert caplog.messages[-1] == "caught up: 1 micro-batch"
    reporter.on_caught_up(owner.positions(), ["logs"])
    assert caplog.messages[-1] == "caught up: 1 micro-batch; not copied: 1 topic (paused or handed over)"
    reporter.on_caught_up(owner.positions(), unread=["orders-0 from offset 12: producer id 7"])
    assert caplog.messages[-1].endswith(
        "; what lies behind open transactions of the source is read once they end: orders-0 from offset 12: producer id 7"
    )
    assert problems[ProblemKind.EXPIRED].place == TopicPartition("orders", 0)
    assert problems[ProblemKind.RETRIABLE].error_name == "NETWORK_EXCEPTION"


def test_what_the_supervisor_meets_is_counted_from_the_first_wait_to_the_error_that_ends_the_run(tmp_path: Path) -> None:
    settings = config(tmp_path)
    reporter = RunReporter(ReportedRun.of_mirror(settings), RunIdentity.of_this_process())
    away = RetriableError("NETWORK_EXCEPTION", "cannot connect to 127.0.0.1:1")
    for since_ms in (1, 2):
        reporter.on_retry("source cluster east", away, since_ms, 1.0)
    store = TableStorage(settings.tables).best_effort_tables()
    reporter.on_takeover(take_over(settings.tables), store)
    refused = BatchRefusedError(A.topic_partition, 7, "it is too large", "Raise max.message.bytes")
    reporter.on_end("BatchRefusedError", refused)
    first, last = read_problems(store, 1)
    assert (first.problem.text, first.occurrences) == (f"source cluster east: {away}", 2)
    assert "addresses" in first.problem.remedy
    assert (last.problem.kind, last.problem.place, last.problem.remedy) == (
        ProblemKind.ENDED,
        A.topic_partition,
        "Raise max.message.bytes",
    )
    assert last.problem.text == "orders-0: batch at base offset 7 refused: it is too large"
    (run,) = [row for row in store.read("runs", ()) if row["outcome"] is not None]
    assert run["outcome"] == "BatchRefusedError"


def test_each_step_of_a_start_is_logged_once_and_noted_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = config(tmp_path)
    reporter, path = (
        RunReporter(ReportedRun.of_mirror(settings), RunIdentity.of_this_process()),
        planner_state.start_state_path(settings.checkpoint),
    )
    caplog.set_level(logging.INFO)
    for count in (3, 4):
        reporter.start_step("starting the query", f" over {count} partitions")
        note = planner_state.read_state(path, planner_state.StartState)
        assert note is not None
        assert note.step == f"starting the query over {count} partitions"
    reporter.start_step("waiting for the first plan")
    assert caplog.messages == ["start: starting the query over 3 partitions", "start: waiting for the first plan"]


def test_measurements_that_cannot_be_written_end_no_micro_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    settings = config(tmp_path, checkpoint=str(tmp_path / "file" / "checkpoint"))
    reporter = RunReporter(ReportedRun.of_mirror(settings), RunIdentity.of_this_process())
    reporter.write_measurements(Measurements(bytes_per_offset={A: 1.0}, bytes_per_s=None, bytes_per_batch=None))
    assert "measurements for the planner were not written: [Errno " in caplog.text


def test_a_wait_is_reported_once_whatever_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path)
    reporter, store, _ = reporter_of(settings)
    at_note = iter(range(0, 1_000, 10))
    monkeypatch.setattr(
        "shallow_mirror.streaming.watch.run_reporter.time", SimpleNamespace(time=lambda: 2e9, monotonic=lambda: next(at_note))
    )
    stalled = StalledStep("EndTxn at 127.0.0.1:2", 12.0)
    for stall in (stalled, stalled, None):
        reporter.check_stalls(stall)
    note = planner_state.PlannerState(at_ms=2 * 10**12, waiting_for="the source is unreachable", since_ms=5)
    planner_state.write_state(planner_state.planner_state_path(settings.checkpoint), note)
    for _ in range(3):
        reporter.check_stalls(None)
    reporter.on_end("stopped", None)
    assert [counted_problem.problem.text for counted_problem in read_problems(store, 1)] == [
        "the micro-batch has waited 12 s for EndTxn at 127.0.0.1:2",
        "nothing new is planned: the source is unreachable",
    ]
    assert [counted_problem.occurrences for counted_problem in read_problems(store, 1)] == [1, 1]
    assert caplog.text.count("nothing new is planned") == 1


def test_the_metrics_say_that_it_waits_until_the_planner_plans_again(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    settings = config(tmp_path, metrics={"port": port})

    def metric(name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        (line,) = [line for line in lines if line.startswith(f"shallow_mirror_{name}")]
        return float(line.rpartition(" ")[2])

    reporter = RunReporter(ReportedRun.of_mirror(settings), RunIdentity.of_this_process())
    with reporter.serve_metrics():
        reporter.on_retry("query", RetriableError("WORKER_LOST", "gone"), 1, 1.0)
        assert (metric("waiting"), metric("restarts_total")) == (1, 1)
        note = planner_state.PlannerState(at_ms=2 * 10**12, waiting_for=None, since_ms=None)
        planner_state.write_state(planner_state.planner_state_path(settings.checkpoint), note)
        reporter.check_stalls(None)
        assert metric("waiting") == 0


@pytest.mark.slow
def test_a_probe_follows_what_is_reported_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    reader_times = iter(range(0, 10_000, 10))
    monkeypatch.setattr(
        "shallow_mirror.streaming.watch.run_reporter.time",
        SimpleNamespace(time=lambda: 2e9, monotonic=lambda: next(reader_times)),
    )
    reporter = RunReporter(ReportedRun.of_mirror(settings), RunIdentity.of_this_process())
    owner = take_over(settings.tables)

    def is_ready_after_plan(number: int, waiting_for: str | None) -> bool:
        state = planner_state.PlannerState(at_ms=2 * 10**12 + number, waiting_for=waiting_for, since_ms=None)
        planner_state.write_state(planner_state.planner_state_path(settings.checkpoint), state)
        reporter.check_stalls(None)
        return reporter.health.ready().is_passed

    assert not reporter.health.ready().is_passed
    reporter.on_takeover(owner, TableStorage(settings.tables).best_effort_tables())
    reporter.start_step("waiting for the first plan")
    reporter.check_stalls(None)
    assert "waiting for the first plan" in reporter.health.ready().text
    assert is_ready_after_plan(1, None)
    assert not is_ready_after_plan(2, "the source is unreachable")
    assert is_ready_after_plan(3, None)
    reporter.check_stalls(StalledStep("EndTxn at 127.0.0.1:2", 12.0))
    assert "EndTxn at 127.0.0.1:2" in reporter.health.ready().text
    reporter.on_micro_batch(report(segment(A, 0, 5, NOW_MS)), owner, owner.positions())
    reporter.check_stalls(None)
    assert reporter.health.ready().is_passed, "what the reporter itself wrote is no plan"
    reporter.on_retry("query", RetriableError("NETWORK_EXCEPTION", "cannot connect to 127.0.0.1:1"), 1, 1.0)
    assert "cannot connect to 127.0.0.1:1" in reporter.health.ready().text
    assert reporter.health.live().is_passed
    assert is_ready_after_plan(4, None)
    reporter.on_end("stopped", None)
    assert not reporter.health.ready().is_passed


def test_an_archive_and_a_restore_have_limits_of_their_own(tmp_path: Path) -> None:
    archive = archive_runs.config(tmp_path, "127.0.0.1:1", ["orders"], trigger="60 seconds")
    restore = restore_runs.config(tmp_path, archive, "127.0.0.1:2")
    assert ReportedRun.of_archive(archive).health_limits == HealthLimits(live_s=1200.0, ready_s=360.0)
    assert ReportedRun.of_restore(restore).health_limits == HealthLimits(live_s=600.0, ready_s=60.0)


def test_without_a_local_checkpoint_the_loop_beside_the_query_counts_as_its_planner(tmp_path: Path) -> None:
    settings = config(tmp_path, checkpoint="s3://bucket/checkpoint")
    reporter, _, _ = reporter_of(settings)
    reporter.start_step("waiting for the first plan")
    reporter.check_stalls(None)
    assert reporter.health.ready().is_passed


@pytest.mark.thorough
def test_a_mirror_of_an_unreachable_cluster_is_live_and_not_ready(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    mirror = Mirror(config(tmp_path, metrics={"port": port}))
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(mirror.run)
        try:
            statuses = [probe(port, path) for path in ("healthz", "readyz")]
            while "cannot connect" not in statuses[1][1]:
                assert not run.done()
                statuses = [probe(port, path) for path in ("healthz", "readyz")]
        finally:
            mirror.stop()
        run.result(30)
    assert (statuses[0], statuses[1][0]) == ((200, "live\n"), 503)
    assert statuses[1][1].startswith("not ready: waits for: source cluster east")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (CorruptBatchError(A.topic_partition, 1, 2, "crc"), "preflight"),
        (DataLossError(A.topic_partition, 1, 2, "gone"), "read.on_data_loss"),
        (FencedError("run 3"), "do not start"),
        (RecoverNeededError("nothing says"), "recover CONF"),
        (
            OlderTablesError("7", "the target has 9"),
            "put the newest tables back; with `shallow-mirror recover CONF --accept-repeats`",
        ),
        (RetriableError("NOT_ENOUGH_REPLICAS", "of orders"), "min.insync.replicas"),
        (RetriableError("TOKEN_ENDPOINT_UNREACHABLE", "refused"), "reachable: sasl.oauthbearer.token.endpoint.url"),
        (RetriableError("SOMETHING_NEW", "of orders"), "start the mirror again"),
        (ConfigError("no such topic"), "do what the message says"),
    ],
)
def test_whatever_ends_a_run_has_a_remedy(error: MirrorError, remedy: str) -> None:
    problem = problem_of_end(error)
    assert remedy in problem.remedy
    assert problem.place == getattr(error, "topic_partition", None)


@pytest.mark.parametrize(
    ("on_refused", "remedy"),
    [("stop", "write.on_refused: quarantine keeps the batch in a table"), ("quarantine", "cannot be used for this batch")],
)
def test_a_damaged_batch_that_ends_a_run_is_said_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_refused: str, remedy: str
) -> None:
    settings = config(tmp_path)
    settings = settings.model_copy(update={"write": settings.write.model_copy(update={"on_refused": on_refused})})
    damage = CorruptBatchError(A.topic_partition, 7, 7605, "its CRC does not match its payload")

    def run(*_: Any) -> None:
        raise damage

    monkeypatch.setattr("shallow_mirror.streaming.runs.mirror._MirrorRun.connect", run)
    with pytest.raises(CorruptBatchError) as ended:
        Mirror(settings).run()
    output = "orders-0: corrupt record batch at base offset 7: its CRC does not match its payload. Check the disk of"
    assert str(ended.value).startswith(output)
    assert remedy in str(ended.value)
    assert (ended.value.pos, str(damage).count("disk")) == (7605, 0)


def test_a_retriable_error_without_a_remedy_says_that_the_mirror_continues() -> None:
    assert problem_of_retry("query", RetriableError("SOMETHING_NEW", "x")).remedy == "the mirror retries automatically"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [(None, "the source runs"), ("NETWORK_EXCEPTION", "the brokers run"), ("TOKEN_ENDPOINT_UNREACHABLE", "token endpoint runs")],
)
def test_a_planner_that_waits_says_whom_to_look_at(name: str | None, remedy: str) -> None:
    assert remedy in problem_of_wait("nothing new is planned", name).remedy


def test_the_newest_record_of_each_partition_has_an_age_and_none_is_below_zero() -> None:
    rows = [
        segment(A, 0, 1, 1_000),
        segment(A, 1, 2, 4_000),
        segment(B, 0, 1, 99_000),
        segment(B, 1, 2, -1),
        segment(B, 2, 3, 5, SegmentKind.GAP),
    ]
    assert sorted(ages_s([row.segment for row in rows], 10_000)) == [0, 6.0]


def test_a_port_that_is_taken_ends_the_start_before_anything_is_asked(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = config(tmp_path, metrics={"port": taken.getsockname()[1]})
        with pytest.raises(ConfigError, match="cannot be listened on"):
            Mirror(settings).run()


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("metrics", "instruments"):
        monkeypatch.delitem(__import__("sys").modules, f"shallow_mirror.streaming.watch.{module}")
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    monkeypatch.delattr("shallow_mirror.streaming.watch.metrics", raising=False)
    reporter = RunReporter(ReportedRun.of_mirror(config(tmp_path, metrics={"port": 1})), RunIdentity.of_this_process())
    with pytest.raises(ConfigError, match=r"shallow-mirror\[metrics\]"), reporter.serve_metrics():
        pass


def test_clusters_that_are_unreachable_have_no_lag_and_are_not_up(tmp_path: Path) -> None:
    settings = config(tmp_path)
    snapshots: list[ClusterSnapshot] = []
    monitor = LagMonitor(settings, SimpleNamespace(update=snapshots.append, clear=lambda: None))
    decide(owner := take_over(settings.tables), segment(A, 0, 90, 100))
    monitor.positions = owner.positions()
    snapshot = monitor.query()
    assert (snapshot.is_source_up, snapshot.is_target_up) == (False, False)
    assert [(partition.source, partition.lag_offsets) for partition in snapshot.partitions] == [(A, None)]
    metrics = Metrics("m", 5, version="1", source="east", target="west")
    metrics.clusters.update(snapshot)
    assert metrics.registry.get_sample_value("shallow_mirror_partitions_without_lag", {"mirror": "m"}) == 1
    with monitor.running():
        pass  # ends at once, whatever it is about to query


def test_status_shows_the_last_problems_with_their_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(tmp_path)
    reporter, _, _ = reporter_of(settings)
    for _ in range(2):
        reporter.on_retry("query", RetriableError("NETWORK_EXCEPTION", "cannot connect"), 1, 1.0)
    reporter.on_end("stopped", None)
    monkeypatch.setattr(status, "query_source", lambda *_, **__: SourceView())
    monkeypatch.setattr(status, "query_target", lambda *_, **__: None)
    monkeypatch.setattr(status, "older_tables", lambda *_, **__: None)
    actual = status.gather_status(settings)
    (document,) = actual.document()["problems"]
    assert (document["kind"], document["occurrences"], document["topic"]) == ("retriable", 2, None)
    console = status_view.stdout_console()
    with console.capture() as captured:
        status_view.show(actual, console)
    shown = captured.get()
    assert "last problems:" in shown
    assert "retriable (run 1, 2 times since" in shown
    assert "    remedy: check that the brokers run" in shown


def test_slots_that_end_early_again_and_again_are_reported_once_with_speed_and_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reporter, _, owner = reporter_of(config(tmp_path))
    rows = [segment(A, 0, 5, NOW_MS - 500)]
    decide(owner, *rows)
    early = (EarlyEnd(2_000_000, 20.0, 19.0), EarlyEnd(500_000, 20.0, 20.0))
    for early_ends in (early, (), early, early, early, ()):
        reporter.on_micro_batch(report(*rows, early_ends=early_ends), owner, owner.positions())
    texts = [record.getMessage() for record in caplog.records if "slots" in record.getMessage()]
    assert len(texts) == 2
    assert "0.125 MB/s, 98% of the time waiting for the target" in texts[0]
    assert "within write.commit_interval again" in texts[1]
