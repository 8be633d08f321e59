"""A rehearsal that is killed leaves topics, groups, files and mirrors, which the next rehearsal or an abort removes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.migration.migrations import Scene, left_of_rehearsals, running_application
from tests.support import mirror_runs as runs
from tests.support.console_entry import console

from shallow_mirror.migration import read_state
from shallow_mirror.migration.rehearsal.leftovers import Leftovers, mirrors_of

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE_S = 400.0


def rehearse(made: Scene) -> subprocess.Popen[str]:
    """Start a rehearsal, which writes to `rehearsal.log`."""
    with log_of(made).open("w") as output:
        command = [sys.executable, "-m", "shallow_mirror.cli", "migrate", "rehearse", str(made.file)]
        return subprocess.Popen(command, stdout=output, stderr=output, text=True, env=runs.own_spark_environment())


def log_of(made: Scene) -> Path:
    return made.folder / "rehearsal.log"


def kill_rehearsal(made: Scene, when: Callable[[], bool]) -> Leftovers:
    """Kill a rehearsal with SIGKILL, alone and without its mirrors, at a moment."""
    with rehearse(made) as process:
        try:
            give_up_at = time.monotonic() + PATIENCE_S
            while not when():
                assert process.poll() is None, log_of(made).read_text(encoding="utf-8")
                assert time.monotonic() < give_up_at, log_of(made).read_text(encoding="utf-8")
                time.sleep(0.05)
        finally:
            process.kill()
    (rehearsal,) = read_state(made.files()).rehearsals
    return Leftovers.of(rehearsal)


@pytest.fixture
def opened(two_clusters: Any, topic_name: str, tmp_path: Path) -> Iterator[Scene]:
    with running_application(tmp_path, two_clusters, topic_name, 3, reverse={"start": "conductor"}) as (made, _, _):
        try:
            yield made
        finally:
            for rehearsal in read_state(made.files()).rehearsals:  # none, unless the test has failed
                for mirror in mirrors_of(rehearsal["folder"]):
                    mirror.stop()


def assert_nothing_left(made: Scene, leftovers: Leftovers) -> None:
    assert left_of_rehearsals(made.source) == left_of_rehearsals(made.target) == []
    assert list(mirrors_of(leftovers.folder)) == []
    assert not Path(leftovers.folder).exists()
    assert read_state(made.files()).rehearsals == ()


def test_what_a_killed_rehearsal_leaves_is_removed_by_an_abort(opened: Scene) -> None:
    def is_mirror_running() -> bool:
        rehearsals = read_state(opened.files()).rehearsals
        return any(mirror for rehearsal in rehearsals for mirror in mirrors_of(rehearsal["folder"]))

    leftovers = kill_rehearsal(opened, is_mirror_running)
    assert len(list(mirrors_of(leftovers.folder))) == 1
    assert len(left_of_rehearsals(opened.source)) == 4, "a topic and three groups"
    status = json.loads(console("migrate", "status", str(opened.file), "--json").lines[0])
    assert status["rehearsals"] == [leftovers.prefix]
    done = console("migrate", "abort", str(opened.file))
    assert (done.code, done.lines) == (0, [f"rehearsal {leftovers.prefix}: removed"]), done.stderr
    assert_nothing_left(opened, leftovers)
    assert "nothing is under way" in console("migrate", "abort", str(opened.file)).stderr


def test_what_a_killed_rehearsal_leaves_is_removed_by_the_next_one(opened: Scene) -> None:
    leftovers = kill_rehearsal(opened, lambda: "prepare reverse mirror: done" in log_of(opened).read_text(encoding="utf-8"))
    assert len(list(mirrors_of(leftovers.folder))) >= 1
    assert left_of_rehearsals(opened.target) != []
    with rehearse(opened) as process:
        assert process.wait(PATIENCE_S) == 0, log_of(opened).read_text(encoding="utf-8")
    assert log_of(opened).read_text(encoding="utf-8").splitlines()[-1].strip() == "nothing is left of it"
    assert_nothing_left(opened, leftovers)
