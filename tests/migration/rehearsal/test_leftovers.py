"""Mirrors of a killed rehearsal are found by their files, and end even where they ignore SIGTERM."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shallow_mirror.checkpoints.rows import MigrationRow
from shallow_mirror.migration.mirror_process import StartedMirror
from shallow_mirror.migration.rehearsal.leftovers import Leftovers, mirrors_of
from shallow_mirror.migration.state import REHEARSED, REHEARSING, state_of
from shallow_mirror.migration.view import state_document, state_text

READY = "import signal, sys, time; {}; print(flush=True); time.sleep(60)"


@contextmanager
def sleeping(*arguments: str, begins_with: str = "pass") -> Iterator[subprocess.Popen[str]]:
    """Run a process with these arguments that does nothing."""
    command = [sys.executable, "-c", READY.format(begins_with), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the system does not list processes in /proc")
def test_only_processes_that_run_a_file_of_the_folder_are_its_mirrors(tmp_path: Path) -> None:
    file, other = tmp_path / "scratch" / "mirror.yaml", tmp_path / "mirror.yaml"
    with sleeping("run", str(file), "--for", "1800") as mirror, sleeping("run", str(other)), sleeping("status", str(file)):
        (found,) = mirrors_of(str(file.parent))
        assert found.pid == mirror.pid
        found.stop()
        mirror.wait(10)
        assert list(mirrors_of(str(file.parent))) == []


def test_a_mirror_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with sleeping(begins_with="signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        ticks = itertools.count(step=20.0)
        StartedMirror(process.pid, tmp_path / "log").stop(clock=lambda: next(ticks), sleep=lambda _: None)
        process.wait(10)


def row(sequence: int, event: str, leftovers: Leftovers) -> MigrationRow:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return MigrationRow(
        sequence=sequence,
        conductor_epoch=1,
        wave="",
        event=event,
        step="",
        detail=leftovers.document(),
        fingerprint="f",
        host="h",
        pid=1,
        run_id="r",
        at=at,
    )


def test_a_rehearsal_is_in_the_status_until_everything_of_it_is_removed() -> None:
    killed, removed = (Leftovers(prefix=f"migrate-rehearsal-{number}", folder=f"/tmp/{number}") for number in range(2))
    rows = [row(1, REHEARSING, killed), row(2, REHEARSING, removed), row(3, REHEARSED, removed)]
    state = state_of(rows, ["first"])
    assert [Leftovers.of(rehearsal) for rehearsal in state.rehearsals] == [killed]
    assert state_document(state, "m")["rehearsals"] == [killed.prefix]
    assert state_text(state, "m").splitlines()[-1].startswith(f"rehearsal {killed.prefix}: running or killed")
