"""One mirror as people run it, and everything it tells about itself: log lines, metrics, problems, status, report."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support import mirror_runs as runs
from tests.support.console_entry import console
from tests.support.mirror_runs import command, conf_file, create_topic, log_text, open_transaction, set_topic, wait_for_run, write
from tests.support.probes import probe

from shallow_mirror.checkpoints.logs.runs import read_problems
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.streaming.planning import planner_state

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.usefixtures("micro_batch_loop")]

Samples = dict[tuple[str, str], float]


def _scraped(port: int) -> Samples:
    """Value by name and by what its labels say besides the mirror; nothing before the port is open."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
    except OSError:
        return {}
    return {
        (
            sample.name.removeprefix("shallow_mirror_"),
            ",".join(value for name, value in sample.labels.items() if name != "mirror"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_mirror_reports_what_it_does_in_its_log_its_metrics_its_problems_and_a_report(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target, port = two_clusters.source.bootstrap, two_clusters.target.bootstrap, free_ports(1)[0]
    plain, narrow = f"{topic_name}-plain", f"{topic_name}-narrow"
    for topic in (plain, narrow):
        create_topic(source, topic)
    create_topic(target, narrow, settings={"max.message.bytes": "1000", "message.timestamp.type": "LogAppendTime"})
    write(source, narrow, ["x" * 5_000])
    write(source, narrow, ["fits"])
    write(source, plain, ["a", "b"])
    conf = conf_file(
        tmp_path,
        source,
        target,
        [plain, narrow],
        metrics={"port": port, "max_topics": 1, "lag_interval": "1 second"},
        write={"on_refused": "quarantine"},
    )
    settings = MirrorConfig.load(conf)
    seen: Samples = {}

    def checked_topic_problems() -> int:
        topics = planner_state.read_state(planner_state.topics_state_path(settings.checkpoint), planner_state.TopicsState)
        return 0 if topics is None else len(topics.problems)

    def shows(**expected: float) -> bool:
        seen.clear()
        seen.update(_scraped(port))
        return all(seen.get((name, "")) == value for name, value in expected.items())

    with command(tmp_path, conf, "--log-format", "json") as process:
        wait_for_run(process, "the port of the metrics", lambda: probe(port, "healthz")[0] != 0)
        assert (probe(port, "healthz"), probe(port, "readyz")[0]) == ((200, "live\n"), 503), "Spark is not started yet"
        wait_for_run(process, "the take-over", lambda: shows(run_epoch=1))
        wait_for_run(process, "three records", lambda: shows(records_total=3))
        set_topic(target, plain, {"message.timestamp.type": "LogAppendTime"})
        with open_transaction(source, plain, ["c", "d", "e"]):
            write(source, plain, ["behind the transaction"])
            wait_for_run(process, "what is open", lambda: shows(open_source_transactions=1))
            assert (probe(port, "healthz"), probe(port, "readyz")) == ((200, "live\n"), (200, "ready\n"))
            assert seen["cluster_up", "source"] == seen["cluster_up", "target"] == 1
        wait_for_run(process, "the rest", lambda: shows(records_total=7, open_source_transactions=0))
        wait_for_run(
            process,
            "no lag",
            lambda: shows(partitions=2) and {seen["lag_offsets", topic] for topic in ("(others)", narrow)} == {0},
        )
        # What `status` shows of topics is as of the mirror's last check of them, which has its own interval.
        wait_for_run(process, "a check of topics", lambda: checked_topic_problems() == 2)
        page, status = (
            console("report", str(conf), "--out", str(tmp_path / "r.html"), "--topic", plain),
            console("status", str(conf)),
        )
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(runs.PATIENCE_S) == 0, log_text(tmp_path)

    lines = [json.loads(line) for line in log_text(tmp_path).splitlines()]
    reported = [line["micro_batch"] for line in lines if "micro_batch" in line]
    rows = TableStorage(settings.tables).best_effort_tables().read("micro_batches", ())
    assert sorted((line_document["micro_batch"], line_document["record_count"]) for line_document in reported) == sorted(
        (row["micro_batch"], row["record_count"]) for row in rows
    )
    assert seen["micro_batches_total", ""] == len(reported) >= 2
    assert seen["end_to_end_seconds_count", ""] >= 1
    assert seen["last_decision_timestamp_seconds", ""] > 0
    assert (seen["run_epoch", ""], seen["waiting", ""], seen["batches_total", "refused"]) == (1, 0, 1)
    assert all(line["level"] != "ERROR" for line in lines)

    problems = read_problems(TableStorage(settings.tables).best_effort_tables(), 1)
    assert [problem.problem.place for problem in problems if problem.problem.kind == "quarantined"] == [(narrow, 0)]
    stamping = [f"target topic {topic} has message.timestamp.type=LogAppendTime" for topic in (narrow, plain)]
    in_config = [
        (problem.problem.text.partition(":")[0], problem.occurrences) for problem in problems if problem.problem.kind == "config"
    ]
    assert in_config == [(stamping[0], 1), (stamping[1], 1)], "at the start, and of a topic that was changed under the mirror"
    others = [problem.problem.text for problem in problems if problem.problem.kind not in ("config", "quarantined")]
    assert not others
    assert all(any(line.startswith(problem) for line in status.lines) for problem in stamping), status.lines
    assert (status.code, status.slow_imports) == (0, "[]"), status.stderr
    assert any(f"quarantined (run 1): {narrow}-0: batch at offsets 0 to 0" in line for line in status.lines), status.lines
    assert any("remedy: Set message.timestamp.type=CreateTime on it to keep theirs" in line for line in status.lines)

    assert (page.code, page.lines, page.slow_imports) == (0, [str(tmp_path / "r.html")], "[]"), page.stderr
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert f"{plain}-0: source offsets 0 to 7" in text
    assert "In quarantine: 1 batch," in text
    assert text.count("<svg") == 7
