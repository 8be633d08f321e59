"""A conductor in a process of its own that ends itself with SIGKILL before a given effect, and reports by lines of a file."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shallow_mirror.checkpoints.logs.runs import MigrationOwner
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.migration import Options, abort, reverse_mirror, roll_back, run_migration
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.steps import Step

EFFECTS = ("create_denies", "delete_denies", "hand_over", "resume", "move_groups", "prepare_reverse", "compare")


class Lines:
    """`Reports` as JSON lines at the end of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begun(self, wave: str, step: Step) -> None:
        self._write("begun", step=step.value)

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        self._write("done", step=step.value, detail=dict(detail))

    def waits(self, outside: Outside) -> None:
        self._write("waits", step=outside.step.value, request=outside.request, seen=outside.seen)

    def says(self, sentence: str) -> None:
        self._write("says", sentence=sentence)

    def ended(self, effects: int) -> None:
        self._write("ended", effects=effects)

    def _write(self, kind: str, **values: Any) -> None:
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"kind": kind, **values}) + "\n")


class Killer:
    """Counts effects, before and after each, and ends the process at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self._kill_at = kill_at
        self.count = 0

    def __call__(self) -> None:
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def around(self, owner: Any, name: str) -> None:
        effect: Callable[..., Any] = getattr(owner, name)

        def killed(*arguments: Any, **options: Any) -> Any:
            self()
            result = effect(*arguments, **options)
            self()
            return result

        setattr(owner, name, killed)


def conduct(file: str, command: str, kill_at: int | None, lines: str) -> None:
    """Run `command` of a migration file. The process ends with code 0 where it was not killed."""
    os.setsid()
    killer, reports = Killer(kill_at), Lines(Path(lines))
    for name in EFFECTS:
        killer.around(Passage, name)
    killer.around(MigrationOwner, "append")
    killer.around(reverse_mirror, "_register")
    files = MigrationFiles(MigrationConfig.load(file))
    match command:
        case "run":
            run_migration(files, reports, Options())
        case "rollback":
            roll_back(files, reports, options=Options())
        case "abort":
            abort(files, reports, Options())
    reports.ended(killer.count)
    os._exit(0)


def start(file: Path, command: str, kill_at: int | None, lines: Path) -> Any:
    """Return the process, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.faults.mirror_main", "tests.faults.campaigns", "pandas", "tests.migration.conductor_main"]
    )
    process = context.Process(target=conduct, args=(str(file), command, kill_at, str(lines)))
    process.start()
    return process
