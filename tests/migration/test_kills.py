"""A conductor that is killed with SIGKILL at an effect, while writers and groups run; the next one continues; and back again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.migration import conductor_main
from tests.migration.migrations import Operator, Scene, running_application

from shallow_mirror.migration import Phase, read_state
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.steps import Step

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(3600)]

PARTITIONS = 12
ROUNDS = int(os.environ.get("MIGRATION_ROUNDS", "50"))
FIRST_ROUND = int(os.environ.get("MIGRATION_FIRST_ROUND", "0"))
STRIDES = (5, 7)
"""By how many effects the kill of a move and of a rollback moves on from round to round."""
PATIENCE_S = 120.0


class Listener:
    """Passes the lines of conductors on to an operator."""

    def __init__(self, path: Path, operator: Operator) -> None:
        self._path, self._operator = path, operator
        self._read = 0
        self.effects = 0

    def listen(self) -> None:
        if not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines()
        for line in lines[self._read :]:
            self._pass_on(json.loads(line))
        self._read = len(lines)

    def _pass_on(self, line: Mapping[str, Any]) -> None:
        match line["kind"]:
            case "waits":
                step = Step(line["step"])
                self._operator.waits(Outside(wave="all", step=step, request=line["request"], seen=line["seen"]))
            case "says":
                self._operator.says(line["sentence"])
            case "done":
                self._operator.done("all", Step(line["step"]), line["detail"])
            case "ended":
                self.effects = line["effects"]


class Round:
    def __init__(self, scene: Scene, operator: Operator) -> None:
        self._scene = scene
        self._lines = scene.folder / "lines.jsonl"
        self._listener = Listener(self._lines, operator)
        self._is_reverse_started = False
        self._operator = operator

    def perform(self, command: str, kill_at: int | None) -> int | None:
        """Return the exit code of the conductor; negative: it was killed."""
        process = conductor_main.start(self._scene.file, command, kill_at, self._lines)
        give_up_at = time.monotonic() + PATIENCE_S
        while process.is_alive():
            assert time.monotonic() < give_up_at, self._operator.lines[-3:]
            self._listener.listen()
            if not self._is_reverse_started and any("as a service" in line for line in self._operator.lines):
                self._is_reverse_started = True
                self._scene.start_mirror(self._scene.reverse_file)
            time.sleep(0.05)
        process.join()
        self._listener.listen()
        return int(process.exitcode)

    def phase(self) -> Phase:
        return read_state(self._scene.files()).waves["all"].phase


def test_fifty_kills_of_conductors_on_the_way_there_and_back_lose_and_repeat_nothing(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    killed, stopped_s, records = {"run": 0, "rollback": 0}, list[float](), 0
    for number in range(FIRST_ROUND, FIRST_ROUND + ROUNDS):
        kills = {"run": number * STRIDES[0] % 57, "rollback": number * STRIDES[1] % 53}
        opened = running_application(tmp_path / f"round-{number}", two_clusters, f"{topic_name}-{number}", PARTITIONS)
        with opened as (made, application, operator):
            performed = Round(made, operator)
            for command, phase in (("run", Phase.MOVED), ("rollback", Phase.RETURNED)):
                code = performed.perform(command, kills[command])
                if code != 0:
                    assert code == -9, (number, kills, operator.lines[-5:])
                    killed[command] += 1
                    assert performed.perform(command, None) == 0, (number, kills)
                assert performed.phase() is phase, (number, kills)
                time.sleep(0.3)
            application.stop_writers()
            application.await_everything_read()
            application.stop_groups()
            assert application.differences() == {}, (number, kills)
            stopped_s += application.stopped_s
            records += sum(application.written.values())
        print(f"round {number}: kills at {kills}, writers stopped {[round(s, 1) for s in application.stopped_s]} s", flush=True)
    print(f"{killed} kills, {records:,} records, writers stopped for {min(stopped_s):.1f} to {max(stopped_s):.1f} s")
    assert min(killed.values()) > ROUNDS * 0.7
