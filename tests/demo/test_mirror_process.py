from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from shallow_mirror.demo import mirror_process
from shallow_mirror.demo.mirror_process import MirrorProcess, descendants, recovery_decisions


def test_recovery_decisions_are_read_from_the_log_of_whatever_form() -> None:
    log = [
        "2026 INFO shallow_mirror.streaming.runs.mirror: run epoch 2 took over the offset map",
        "2026 WARNING shallow_mirror.sinks.kafka.protocol.txn_performer: recovery: slot txn m-0 (producer id 3, epoch 7): committed",
        "recovery: slot txn m-1 (producer id 4, epoch 0): removed, will be read again",
        "recovery: nothing to resolve",
    ]
    assert recovery_decisions(log) == (
        ("m-0 (producer id 3, epoch 7)", "committed"),
        ("m-1 (producer id 4, epoch 0)", "removed, will be read again"),
        ("", "nothing to resolve"),
    )


def test_descendants_are_children_of_children_and_no_others() -> None:
    assert sorted(descendants(1, [(2, 1), (3, 2), (4, 3), (5, 9), (9, 0), (1, 0)])) == [2, 3, 4]


SPAWNS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import os,time; os.setpgid(0,0); print('up', flush=True); time.sleep(60)"],
                         stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_killing_takes_processes_which_left_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_process, "command", lambda: [sys.executable, "-c", SPAWNS])
    started = MirrorProcess(tmp_path / "conf", tmp_path / "log")
    until = time.monotonic() + 20
    while not (lines := started.log_lines()) and time.monotonic() < until:
        time.sleep(0.05)
    child = int(lines[0])
    started.kill()
    assert started.exit_code == -9
    while _is_alive(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _is_alive(child)
    started.kill()
    started.stop()


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie that init has not collected yet does not."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.is_dir() and stat.parent.parent.joinpath("self").exists():
        return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
