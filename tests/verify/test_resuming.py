"""An audit that is interrupted goes on where it was; one that has finished begins anew."""

from __future__ import annotations

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
from deltalake import DeltaTable
from tests.fakes.changes import held
from tests.support.mirror_runs import wait_for
from tests.support.record_batches import batch, marker, record
from tests.verify.mirrored import TOPIC, Mirrored, changed, data_positions, replace

from shallow_mirror.checkpoints.logs.runs import verify_log
from shallow_mirror.checkpoints.logs.topics import Controls, TopicIncarnation
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.types import IsolationLevel
from shallow_mirror.verify import VerifyProgress, VerifyReport, partition_reader, verify_mirror

RANGES = 6

pytestmark = pytest.mark.thorough


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Mirrored]:
    """Six micro-batches; with `range_bytes=1` each is verified on its own."""
    with Mirrored(tmp_path) as mirrored:
        for part in range(RANGES):
            base = part * 10
            payload = b"".join(record(delta, value=b"value %d" % (base + delta)) for delta in range(10))
            mirrored.mirror(batch(base, 10, payload=payload))
        yield mirrored


class InterruptedRunError(Exception):
    pass


class StopAfter:
    """Raise when the n-th range begins to be read."""

    def __init__(self, range_pairs: int) -> None:
        self._left = range_pairs

    def __call__(self, at: VerifyProgress) -> None:
        self._left -= 1
        if self._left < 0:
            raise InterruptedRunError


def interrupt(mirrored: Mirrored, after: int, **options: Any) -> None:
    with pytest.raises(InterruptedRunError):
        mirrored.verify(range_bytes=1, on_progress=StopAfter(after), **options)


def _interrupted(*_: Any) -> None:
    raise InterruptedRunError


def rows(mirrored: Mirrored) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(f"{mirrored.config.tables}/{verify_log.AUDIT_TABLE}").to_pyarrow_table().to_pylist()
    return rows


def facts(report: VerifyReport) -> tuple[object, ...]:
    return (
        report.record_count,
        report.batch_count,
        report.source_bytes,
        report.target_bytes,
        report.difference_counts,
        report.differences,
    )


def test_what_was_verified_before_an_interruption_is_not_read_again_and_the_report_is_the_same(copied: Mirrored) -> None:
    topic_partition = data_positions(copied.target_log)[1]
    data = copied.target_log.batches[topic_partition].data
    replace(copied.target_log, topic_partition, changed(data, data.index(b"value 13"), b"value_13"))
    whole = copied.verify(range_bytes=1)
    interrupt(copied, 3)
    replace(copied.target_log, topic_partition, data)
    continued = copied.verify(range_bytes=1)
    assert (whole.continues, continued.continues) == (False, True)
    assert facts(continued) == facts(whole)
    assert continued.difference_counts == {"changed": 1}
    assert "(an interrupted audit was continued)" in "\n".join(continued.sentences())


def test_a_finished_audit_begins_again(copied: Mirrored) -> None:
    first, second = copied.verify(), copied.verify()
    assert (second.continues, second.record_count) == (False, 60)
    assert first.audit_id != second.audit_id


@pytest.mark.parametrize("options", [{"from_start": True}, {"is_deep": True}, {"topics": ["orders"]}], ids=str)
def test_another_audit_than_the_interrupted_one_begins_again(copied: Mirrored, options: dict[str, Any]) -> None:
    interrupt(copied, 3)
    report = copied.verify(**options)
    assert (report.continues, report.record_count) == (False, 60)


def test_an_audit_may_be_interrupted_again_and_again(copied: Mirrored) -> None:
    for _ in range(RANGES - 1):
        interrupt(copied, 1)
    report = copied.verify(range_bytes=1)
    assert (report.continues, report.record_count, report.is_equal) == (True, 60, True)


def test_an_audit_that_another_process_is_making_is_not_continued(copied: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", os.getppid)
        interrupt(copied, 3)
    first = {row["audit_id"] for row in rows(copied)}
    report = copied.verify(range_bytes=1)
    assert (report.continues, report.record_count, report.audit_id in first) == (False, 60, False)


def test_differences_of_a_topic_that_was_forgotten_since_the_interruption_are_not_kept(copied: Mirrored) -> None:
    replace(copied.target_log, data_positions(copied.target_log)[1], None)
    interrupt(copied, 3)
    source, _ = copied.pair
    copied.source.delete_topic(TOPIC)
    Controls.open(copied.config.tables).forget([TopicIncarnation(source.topic, source.topic_id)], [])
    report = copied.verify(range_bytes=1)
    assert (report.continues, dict(report.difference_counts), report.record_count) == (True, {}, 0)


def test_what_the_mirror_copied_since_the_interruption_is_verified_with_the_rest(copied: Mirrored) -> None:
    interrupt(copied, 3)
    copied.mirror(batch(60, 7))
    assert copied.verify(range_bytes=1).record_count == 67


def test_the_table_says_who_verified_what_and_when(copied: Mirrored) -> None:
    report = copied.verify(range_bytes=1)
    actual = sorted(rows(copied), key=lambda row: (row["verified_at"], row["source_start"] or 0))
    assert {(row["audit_id"], row["host"], row["pid"]) for row in actual} == {(report.audit_id, os.uname().nodename, os.getpid())}
    assert sorted(row["outcome"] for row in actual) == ["begun", *["equal"] * RANGES, "finished"]
    ranges = [row for row in actual if row["outcome"] == "equal"]
    source = copied.pair[0]
    assert {(row["source_topic"], row["source_topic_id"], row["source_partition"]) for row in ranges} == {
        (source.topic, source.topic_id, source.partition)
    }
    assert [(row["source_start"], row["source_end"]) for row in ranges] == [(n * 10, n * 10 + 10) for n in range(RANGES)]
    assert [row["target_start"] for row in ranges][1:] == [row["target_end"] for row in ranges][:-1]
    assert (sum(row["record_count"] for row in ranges), sum(row["source_bytes"] for row in ranges)) == (60, report.source_bytes)


_KILLED = """
import os, signal, sys
from pathlib import Path
from shallow_mirror.verify import verify_mirror
from shallow_mirror.config import MirrorConfig
seen = 0
def count(at):
    global seen
    seen += 1
    if seen == 4:
        os.kill(os.getpid(), signal.SIGKILL)
verify_mirror(MirrorConfig.load(sys.argv[1]), range_bytes=1, flush_s=0.0, on_progress=count)
"""


@pytest.fixture
def conf(copied: Mirrored, tmp_path: Path) -> Path:
    path = tmp_path / "mirror.yaml"
    path.write_text(yaml.safe_dump(copied.document), encoding="utf-8")
    return path


def test_copies_that_were_not_settled_at_an_interruption_are_compared_when_it_continues(
    copied: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.mirror(batch(60, 10, payload=b"".join(record(delta, value=b"late") for delta in range(10))), settles=False)
    with monkeypatch.context() as patched:
        patched.setattr(verify_log.VerifyLog, "finish", _interrupted)
        with pytest.raises(InterruptedRunError):
            copied.verify()
    copied.owner.settle()
    report = copied.verify()
    assert (report.continues, report.record_count, report.difference_counts) == (True, 70, {})


def test_an_audit_that_was_killed_continues_where_it_was(copied: Mirrored, conf: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(conf)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [row["outcome"] for row in rows(copied)].count("equal") == 3
    report = copied.verify(range_bytes=1)
    assert (report.continues, report.record_count, report.is_equal) == (True, 60, True)


def test_ctrl_c_says_that_the_same_command_continues(copied: Mirrored, conf: Path) -> None:
    never = threading.Event()
    copied.target.change("Fetch", held(never))
    command = [sys.executable, "-m", "shallow_mirror.cli", "verify", str(conf)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        wait_for("the audit to begin", lambda: Path(copied.config.tables, verify_log.AUDIT_TABLE, "_delta_log").is_dir())
        wait_for("a Fetch", lambda: any(request.api == "Fetch" for request in copied.target.received))
        running.send_signal(signal.SIGINT)
        _, output = running.communicate(timeout=60)
    never.set()
    assert (running.returncode, output) == (130, "stopped; what was verified is kept: the same command continues from there\n")
    assert copied.verify().continues


def test_a_cluster_that_falls_silent_ends_the_audit_which_then_continues(
    copied: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "PATIENCE_MS", 300)
    never = threading.Event()
    copied.target.change("Fetch", held(never))
    with pytest.raises(RetriableError):
        copied.verify(range_bytes=1)
    never.set()
    report = copied.verify(range_bytes=1)
    assert (report.continues, report.record_count) == (True, 60)


def test_an_unknown_topic_and_the_clusters_of_another_mirror_are_refused(copied: Mirrored) -> None:
    with pytest.raises(ConfigError, match="topic other is not in the offset map: it was never mirrored"):
        copied.verify(topics=["other"])
    swapped = copied.config.model_copy(update={"source": copied.config.target, "target": copied.config.source})
    with pytest.raises(ConfigError, match="source_cluster_id"):
        verify_mirror(swapped)


def test_an_audit_that_was_interrupted_with_another_isolation_level_begins_again(tmp_path: Path) -> None:
    """With read_uncommitted readers of the source see what was not copied; the interrupted audit did not look for it."""
    with Mirrored(tmp_path) as mirrored:
        for base in (0, 10, 20):
            aborted = batch(base, 5, attributes=0x10, producer_id=77, producer_epoch=0, base_sequence=base)
            mirrored.mirror(aborted, marker(base + 5, 0, 77), batch(base + 6, 4))
        interrupt(mirrored, 2)
        read = mirrored.config.read.model_copy(update={"isolation_level": IsolationLevel.READ_UNCOMMITTED})
        mirrored.config = mirrored.config.model_copy(update={"read": read})
        report = mirrored.verify(range_bytes=1)
        assert (report.continues, report.difference_counts) == (False, {"missing": 3})
