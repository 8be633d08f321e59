from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shallow_mirror.streaming.spark import temp_dirs

_HOLD = "from shallow_mirror.streaming.spark import temp_dirs; print(temp_dirs.temp_dir(), flush=True); input()"


def _holding(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_leaves_a_folder_that_the_next_start_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    somebody_elses = tmp_path / "shallow-mirror-spark-without-lock"
    somebody_elses.mkdir()
    with (killed := _holding(tmp_path))[0], (ended := _holding(tmp_path))[0]:
        temp_dirs.remove_orphaned_dirs()
        assert {killed[1], ended[1]} <= set(tmp_path.iterdir()), "both are in use"
        killed[0].send_signal(signal.SIGKILL)
        killed[0].wait()
        ended[0].communicate("\n")
        assert set(tmp_path.iterdir()) == {killed[1], somebody_elses}
        temp_dirs.remove_orphaned_dirs()
    assert list(tmp_path.iterdir()) == [somebody_elses]
