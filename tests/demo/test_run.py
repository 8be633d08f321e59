from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import yaml

from shallow_mirror.demo import mirror_process, run
from shallow_mirror.demo.run import mirror_file, run_demo
from shallow_mirror.errors import MirrorError

COPYING_MIRROR = Path(__file__).with_name("copying_mirror.py")


@pytest.fixture
def copying_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_process, "command", lambda: [sys.executable, str(COPYING_MIRROR)])


def test_the_written_mirror_file_is_a_valid_one(tmp_path: Path) -> None:
    from shallow_mirror.config import MirrorConfig

    config = MirrorConfig.from_document(yaml.safe_load(mirror_file("127.0.0.1:1", "127.0.0.1:2", tmp_path)), folder=tmp_path)
    assert config.read.micro_batch_bytes == 2 << 20
    assert config.topics.is_included("orders.audit")
    assert config.tables == str(tmp_path)


@pytest.mark.alone
@pytest.mark.brokers
def test_the_demo_kills_a_mirror_in_a_transaction_and_finds_no_difference(
    tmp_path: Path, copying_mirror: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(keep=False, records=6000, folder=tmp_path, with_restore=False) == 0
    output = capsys.readouterr().out
    assert "killed: SIGKILL" in output
    assert "a transaction open on orders." in output
    assert "recovery: copying-0 (producer id 1, epoch 1): removed" in output
    assert "differences: 0" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
@pytest.mark.brokers
def test_the_demo_ends_with_1_when_a_record_is_lost_and_keeps_the_evidence(
    tmp_path: Path, copying_mirror: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COPYING_MIRROR_FAULT", "drop")
    assert run_demo(keep=False, records=3000, folder=tmp_path, with_restore=False) == 1
    output = capsys.readouterr().out
    assert "lost: orders.audit-0" in output
    (kept,) = tmp_path.iterdir()
    assert f"delta.`{kept}/tables/offset_map`" in output


def _start_nothing(*arguments: object) -> tuple[()]:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(10)
    return ()


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run, "start_clusters", _start_nothing)
    assert run_demo(keep=False, folder=tmp_path) == run.INTERRUPTED
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_failed_step_is_reported_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise MirrorError("no clusters today")

    monkeypatch.setattr(run, "start_clusters", fail)
    assert run_demo(keep=False, folder=tmp_path) == 1
    assert "no clusters today" in capsys.readouterr().err
