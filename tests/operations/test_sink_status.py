"""`sink status`: the table of a DataFrame sink as a report, and what is refused in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support.console_entry import console
from tests.support.exit_codes import exit_code
from tests.support.inline_frames import InlineFrame, QuerySession, rows_of, sink_to

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients


class KilledError(BaseException):
    """The end of the process: nothing is cleaned up."""


def kill_behind_the_decision(point: str) -> None:
    if point == "Decide":
        raise KilledError(point)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictCluster]:
    clients: dict[Any, Cluster] = {}
    monkeypatch.setattr(worker_clients, "_clusters", clients)
    monkeypatch.setattr("shallow_mirror.sinks.records.record_task.freeze_imports_once", lambda: None)
    with StrictCluster() as cluster:
        cluster.create_topic("out", 1)
        yield cluster
        for client in clients.values():
            client.close()


QUERY = QuerySession("query-1", {number: f"[{number + 1}]" for number in range(9)})


@pytest.fixture
def tables(target: StrictCluster, tmp_path: Path) -> Path:
    """Return the tables of a sink that has written two micro-batches and a job."""
    folder = tmp_path / "tables"
    with sink_to(target, folder) as sink:
        sink(InlineFrame(rows_of("a", "b"), rows_of("c"), session=QUERY), 0)
        sink(InlineFrame(rows_of("d"), session=QUERY), 1)
        sink.write(InlineFrame(rows_of("e", "f")), job_id="2026-11-27")
    return folder


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert exit_code("sink", "status", *arguments, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.slow
def test_the_last_micro_batches_the_run_and_target_offsets_are_reported(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys, str(tables))
    assert (report["sink"], report["run"]["run_epoch"], report["run"]["is_alive"]) == ("sink", 1, True)
    assert [
        (entry["query_id"], entry["batch_id"], entry["job_id"], entry["record_count"], entry["source_offsets"])
        for entry in report["micro_batches"]
    ] == [("query-1", 0, None, 3, "[1]"), ("query-1", 1, None, 1, "[2]"), (None, None, "2026-11-27", 2, None)]
    assert all(entry["is_settled"] and entry["size_bytes"] > 0 for entry in report["micro_batches"])
    (partition,) = report["partitions"]
    assert (partition["topic"], partition["partition"], partition["record_count"]) == ("out", 0, 6)
    assert partition["end"] > 6, "behind transaction markers as well"
    assert partition["size_bytes"] == sum(entry["size_bytes"] for entry in report["micro_batches"])
    assert report["unsettled"] == []


@pytest.mark.slow
def test_a_decision_that_is_not_committed_is_reported_until_the_next_run_commits_it(
    target: StrictCluster, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sink_to(target, tables, kill_behind_the_decision) as sink, pytest.raises(KilledError):
        sink(InlineFrame(rows_of("g"), rows_of("h"), session=QUERY), 2)
    report = report_of(capsys, str(tables))
    assert [entry["is_settled"] for entry in report["micro_batches"]] == [True, True, True, False]
    assert [txn["transactional_id"] for txn in report["unsettled"]] == ["sink-0", "sink-1"]
    assert report["partitions"][0]["record_count"] == 6, "these may still be removed"
    assert exit_code("sink", "status", str(tables)) == 0
    assert re.search(r"decided, and not known to be visible:\n *sink-0 \(producer id \d+, epoch \d+\)", capsys.readouterr().out)
    with sink_to(target, tables) as sink:
        sink(InlineFrame(rows_of("g"), rows_of("h"), session=QUERY), 2)
    report = report_of(capsys, str(tables))
    assert (report["unsettled"], report["partitions"][0]["record_count"]) == ([], 8)


@pytest.mark.slow
def test_the_report_is_readable(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("sink", "status", str(tables), "--name", "sink") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sink sink, ")
    assert lines[1].startswith("run 1 on ")
    assert lines[1].endswith("its process is running")
    assert lines[2].startswith("last decision: job 2026-11-27, ")
    assert any(re.search(r"batch 1 of query query-1 .* 1 .* visible", line) for line in lines)
    assert any(re.search(r"out .* 0 .* 6 ", line) for line in lines)


@pytest.mark.slow
def test_an_earlier_incarnation_of_a_topic_is_left_out(
    target: StrictCluster, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.delete_topic("out")
    target.create_topic("out", 1)
    for client in worker_clients._clusters.values():
        client.close()
    worker_clients._clusters.clear()  # another process, which has not known the topic before
    with sink_to(target, tables) as sink:
        sink(InlineFrame(rows_of("g"), session=QUERY), 2)
    (partition,) = report_of(capsys, str(tables))["partitions"]
    assert partition["record_count"] == 1


@pytest.mark.slow
def test_other_tables_and_names_are_refused_in_one_line(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "there is no table written_records where `tables` says: run the sink once"),
        ([str(tables), "--name", "other"], "was created with shallow_mirror.mirror = 'sink', this sink has 'other'"),
        ([str(tables), "--storage-option", "region"], "--storage-option region: expected KEY=VALUE"),
    ):
        assert exit_code("sink", "status", *arguments) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert len(printed.err.splitlines()) == 1
        assert printed.out == ""


@pytest.mark.slow
def test_the_console_script_reports_without_pandas(tables: Path) -> None:
    ended = console("sink", "status", str(tables), "--json")
    assert (ended.code, ended.slow_imports) == (0, "[]")
    assert json.loads(ended.lines[0])["sink"] == "sink"
