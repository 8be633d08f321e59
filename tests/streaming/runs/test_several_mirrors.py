"""Several mirrors in one process on real brokers: one ends with an error of an operator, the other copies until SIGTERM."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import create_topic, log_text, read_values, wait_for_run, write

from shallow_mirror import cli
from shallow_mirror.config import MirrorConfig
from shallow_mirror.log_context import current_name
from shallow_mirror.streaming.spark.usable_cores import usable_cores

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.alone, pytest.mark.timeout(300)]


class LogLines(logging.Handler):
    """Keeps the messages of each mirror."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str | None, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((current_name(), record.getMessage()))

    def has(self, mirror: str, text: str) -> bool:
        return any(name == mirror and text in line for name, line in self.lines)


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogLines]:
    """Allow a call of the command here: it takes the session that is there, and leaves handlers as they were."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "0")
    root, ours = logging.getLogger(), logging.getLogger("shallow_mirror")
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    handlers, level = root.handlers[:], root.level
    ours.addHandler(lines := LogLines())
    yield lines
    ours.removeHandler(lines)
    for number, handler in before:
        signal.signal(number, handler)
    root.handlers[:] = handlers
    root.setLevel(level)


def conf_file(folder: Path, source: str, target: str, topic: str, mirror: str) -> Path:
    path = folder / f"{mirror}.yaml"
    document = runs.document(source, target, [topic], mirror=mirror, tables=f"tables-{mirror}")
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_a_mirror_that_ends_with_an_error_leaves_the_other_running_until_sigterm(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, log_lines: LogLines
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    refused, copied = f"{topic_name}-refused", f"{topic_name}-copied"
    for topic in (refused, copied):
        create_topic(source, topic)
    create_topic(target, refused, settings={"max.message.bytes": "1000"})
    write(source, refused, ["x" * 5_000])
    write(source, copied, ["0"])
    bad, good = f"bad-{os.getpid()}", f"good-{os.getpid()}"
    conf_file(tmp_path, source, target, refused, bad)
    settings = MirrorConfig.load(conf_file(tmp_path, source, target, copied, good))

    def position() -> int:
        return runs.positions(settings).get((copied, 0), 0)

    def write_after_the_error_and_terminate() -> None:
        try:
            runs.wait_for("the end of one", lambda: log_lines.has(bad, "ended by BatchRefusedError"))
            assert log_lines.has(bad, f"still running: {good}")
            write(source, copied, ["1"])
            runs.wait_for("progress of the other", lambda: position() == 2)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=write_after_the_error_and_terminate)
    sender.start()
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(tmp_path)])
    sender.join()
    assert ended.value.code == 1
    assert runs.is_settled(settings)
    assert read_values(target, copied) == ["0", "1"]
    assert read_values(target, refused) == []
    assert log_lines.has(good, "micro-batch")
    assert log_lines.has(good, "ended; no mirror is left")
    assert not log_lines.has(good, "ended by")
    assert log_lines.lines[-1][1] == f"1 of 2 mirrors ended with an error: {bad} (BatchRefusedError)"


@pytest.mark.long
def test_the_death_of_the_jvm_ends_all_mirrors_and_the_next_start_continues(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    topics = [f"{topic_name}-{number}" for number in range(2)]
    for topic in topics:
        create_topic(source, topic)
        write(source, topic, ["0"])
    (confs := tmp_path / "mirrors").mkdir()
    all_settings = [
        MirrorConfig.load(conf_file(confs, source, target, topic, f"jvm-{number}-{os.getpid()}"))
        for number, topic in enumerate(topics)
    ]

    def has_copied(records: int) -> bool:
        return all(
            runs.positions(settings).get((topic, 0), 0) == records for settings, topic in zip(all_settings, topics, strict=True)
        )

    with runs.command(tmp_path, confs) as process:
        wait_for_run(process, "the first records", lambda: has_copied(1))
        jvm = subprocess.run(["pgrep", "-P", str(process.pid), "java"], capture_output=True, text=True, check=True)
        os.kill(int(jvm.stdout.split()[0]), signal.SIGKILL)
        assert process.wait(runs.PATIENCE_S) == 1, log_text(tmp_path)
    log = log_text(tmp_path)
    assert log.count("ended by SparkLostError") == 2
    assert "unexpected error" not in log
    for topic in topics:
        write(source, topic, ["1"])
    with runs.command(tmp_path, confs, "--available-now") as process:
        assert process.wait(runs.PATIENCE_S) == 0, log_text(tmp_path)
    assert [read_values(target, topic) for topic in topics] == [["0", "1"]] * 2
    assert log_text(tmp_path).count("caught up") == 2


_POOLS_PROGRAM = """
import json
import os
import sys
import threading
from pathlib import Path

from shallow_mirror.config import MirrorConfig
from shallow_mirror.streaming.spark.shared_session import shared_session

folder = Path(sys.argv[1])


def config(name):
    document = {
        "mirror": name,
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}},
        "topics": {"include": ["orders"]},
        "write": {"slots": 64},
        "tables": name,
    }
    return MirrorConfig.from_document(document, folder=folder)


pools = {}


def stream(name):
    spark = session.of_mirror(name)
    spark.conf.set("shallow.mirror.test", name)

    def copy(rows, number):
        rows.mapInArrow(lambda batches: batches, rows.schema).toArrow()
        # The property of the thread of Spark in which the job above was submitted.
        pools.setdefault(name, set()).add(rows.sparkSession.sparkContext.getLocalProperty("spark.scheduler.pool"))

    query = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load().writeStream.foreachBatch(copy)
    running = query.option("checkpointLocation", str(folder / f"checkpoint-{name}")).trigger(processingTime="0 seconds").start()
    while not pools.get(name):
        running.awaitTermination(0.2)
    running.stop()


with shared_session([config("a"), config("b")], None) as session:
    threads = [threading.Thread(target=stream, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context = session.spark.sparkContext
    every = context._jsc.sc().getAllPools()
    print(json.dumps({
        "pools": {name: sorted(map(str, of_mirror)) for name, of_mirror in pools.items()},
        "all": [every.apply(at).name() for at in range(every.size())],
        "slots": int(context.master.removeprefix("local[").removesuffix("]")),
        "parallelism": context.defaultParallelism,
        "shares_settings": session.spark.conf.get("shallow.mirror.test", None) is not None,
    }), flush=True)
"""


@pytest.mark.long
def test_jobs_of_a_micro_batch_run_in_the_pool_of_their_mirror(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_POOLS_PROGRAM, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["pools"] == {"a": ["a"], "b": ["b"]}
    assert {"a", "b"} <= set(result["all"])
    assert (result["slots"], result["parallelism"]) == (2 * (usable_cores()), usable_cores())
    assert not result["shares_settings"]
