"""The people in a rehearsal, simulated: the writer stops when it is asked to, and a mirror that has ended ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.errors import RetriableError
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.mirror_process import StartedMirror
from shallow_mirror.migration.rehearsal.rehearsal import _Actor
from shallow_mirror.migration.steps import Step


def waits(step: Step) -> Outside:
    return Outside(wave="all", step=step, request="start the mirror", seen="it has ended")


def test_a_scratch_mirror_that_has_ended_ends_the_rehearsal_with_its_last_words(tmp_path: Path) -> None:
    said: list[Outside] = []
    stops: list[str] = []
    writer: Any = SimpleNamespace(stop=lambda: stops.append("stop"))
    reports: Any = SimpleNamespace(waits=said.append)
    log = tmp_path / "mirror.log"
    log.write_text("begins\nConfigError: no\n", encoding="utf-8")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        actor = _Actor(writer, [StartedMirror(process.pid, log)], {}, reports)
        actor.waits(waits(Step.CATCH_UP))
        assert [outside.wave for outside in said] == ["rehearsal of all, move"]
        process.kill()
        process.wait()
        with pytest.raises(RetriableError, match=r"catch up: a scratch mirror has ended: ConfigError: no$"):
            actor.waits(waits(Step.CATCH_UP))
        actor.waits(waits(Step.STOP_WRITERS))
    assert stops == ["stop"]
