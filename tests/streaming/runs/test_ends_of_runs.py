"""How `shallow-mirror run` ends, as a process: signals, exit codes and the last line."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import catch_up, command, conf_file, create_topic, log_text, read_values, wait_for_run, write

from shallow_mirror import cli
from shallow_mirror.config import MirrorConfig

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.alone, pytest.mark.timeout(400)]


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow a call of the command here: it takes the session that is there, and leaves handlers as they were."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "0")
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    handlers, levels = root.handlers[:], (root.level, py4j.level)
    yield
    for number, handler in before:
        signal.signal(number, handler)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    py4j.setLevel(levels[1])


class Traffic:
    """Numbers, one after another, into a topic until the block ends."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written: list[str] = []
        self._bootstrap, self._topic = bootstrap, topic
        self._is_over, self._thread = threading.Event(), threading.Thread(target=self._write)

    def _write(self) -> None:
        while not self._is_over.wait(0.2):
            write(self._bootstrap, self._topic, [str(len(self.written))])
            self.written.append(str(len(self.written)))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def test_a_signal_under_traffic_ends_a_run_at_a_micro_batch_boundary_with_exit_0(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, in_this_process: None
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    conf = conf_file(tmp_path, source, target, [topic_name])
    settings = MirrorConfig.load(conf)

    def position() -> int:
        return runs.positions(settings).get((topic_name, 0), 0)

    def require_clean_end() -> None:
        assert runs.is_settled(settings)
        assert read_values(target, topic_name) == [str(number) for number in range(position())]

    with Traffic(source, topic_name) as traffic:
        with command(tmp_path, conf) as process:
            wait_for_run(process, "progress", lambda: position() > 0)
            os.killpg(process.pid, signal.SIGINT)  # Ctrl-C: Spark's JVM and its workers get it as well
            assert process.wait(runs.PATIENCE_S) == 0, log_text(tmp_path)
        assert "Traceback" not in log_text(tmp_path)
        require_clean_end()
        begin = position()

        def terminate() -> None:
            runs.wait_for("progress", lambda: position() > begin)
            os.kill(os.getpid(), signal.SIGTERM)

        sender = threading.Thread(target=terminate)
        sender.start()
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", str(conf)])
        sender.join()
        assert not ended.value.code
        require_clean_end()
        assert position() > begin
    catch_up(settings, spark)
    assert read_values(target, topic_name) == traffic.written


def test_a_refusal_is_one_line_the_last(
    two_clusters: Any,
    topic_name: str,
    tmp_path: Path,
    spark: Any,
    in_this_process: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["x" * 5_000])
    create_topic(target, topic_name, settings={"max.message.bytes": "1000"})
    refused = f"BatchRefusedError: {topic_name}-0: batch at base offset 0 refused: its record at offset 0 alone makes a batch of "
    one_cluster = "ConfigError: source east and target west are one cluster"
    for to, code, line in ((target, 1, refused), (source, 2, one_cluster)):
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", str(conf_file(tmp_path, source, to, [topic_name])), "--available-now"])
        assert ended.value.code == code
        said_here = capsys.readouterr().err
        assert "Traceback" not in said_here
        assert said_here.splitlines()[-1].startswith(line)
