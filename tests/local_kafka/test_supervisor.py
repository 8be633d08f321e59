from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shallow_mirror.local_kafka import supervisor

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


@contextmanager
def supervised(log: Path, program: str, parent_pid: int | None = None) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    command = [sys.executable, "-I", "-S", supervisor.__file__, str(parent_pid or os.getpid()), str(log)]
    command += [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def write(process: subprocess.Popen[bytes], message: bytes) -> None:
    assert process.stdin is not None
    os.write(process.stdin.fileno(), message)


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    while text not in (log.read_text() if log.exists() else ""):
        assert process.poll() is None
        time.sleep(0.01)


def test_the_output_and_the_exit_code_of_the_program_are_kept(tmp_path: Path) -> None:
    with supervised(tmp_path / "log", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)") as (process, _):
        assert process.wait(20) == 3
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_t_is_sigterm(tmp_path: Path) -> None:
    with supervised(tmp_path / "log", "import time; time.sleep(600)") as (process, pid):
        write(process, b"T")
        assert process.wait(20) == 128 + signal.SIGTERM
        assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_k_kills_a_program_that_ignores_sigterm(tmp_path: Path) -> None:
    with supervised(tmp_path / "log", STUBBORN) as (process, pid):
        wait_for(tmp_path / "log", "up", process)
        write(process, b"T")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        write(process, b"K")
        assert process.wait(20) == 128 + signal.SIGKILL
        assert not psutil.pid_exists(pid)


def test_end_of_file_kills(tmp_path: Path) -> None:
    with supervised(tmp_path / "log", STUBBORN) as (process, pid):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 128 + signal.SIGKILL
        assert not psutil.pid_exists(pid)


def test_a_supervisor_whose_parent_is_another_process_kills_although_the_pipe_is_open(tmp_path: Path) -> None:
    with supervised(tmp_path / "log", STUBBORN, parent_pid=1) as (process, pid):
        assert process.wait(20) == 128 + signal.SIGKILL
        assert not psutil.pid_exists(pid)
