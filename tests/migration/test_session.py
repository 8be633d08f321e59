"""Two commands of one migration, and waves that the file does not have any more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.migration.test_late_writes import Said
from tests.test_migration_file import written

from shallow_mirror import cli
from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs import MigrationLog, MigrationOwner
from shallow_mirror.checkpoints.logs.topics import ControlAction, Controls
from shallow_mirror.checkpoints.rows import ENDED
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationFiles
from shallow_mirror.errors import ConfigError
from shallow_mirror.migration import (
    Options,
    abort,
    passage as passage_module,
    read_state,
    roll_back,
    run_migration,
    session,
    view,
)
from shallow_mirror.migration.newest_row import NewestRow
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.state import ABORTED, BEGUN, DONE
from shallow_mirror.migration.steps import Step


@pytest.fixture(autouse=True)
def _without_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is there to note the newest row of the table."""
    monkeypatch.setattr(NewestRow, "require_in", lambda _, read: read())
    monkeypatch.setattr(NewestRow, "note", lambda *_: None)


def taken_over(files: MigrationFiles, pid: int) -> MigrationOwner:
    """Take over the migration as another process of this machine."""
    log = MigrationLog.open(TableStorage(files.config.table_location), "m")
    return log.take_over(replace(RunIdentity.of_this_process(), pid=pid), files.fingerprint, lambda: int(time.time() * 1000))


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_conductor_that_began_while_a_command_checked_is_fenced_only_if_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_over: bool
) -> None:
    files, performed = written(tmp_path), list[str]()

    def check(*_: Any) -> None:
        taken_over(files, os.getppid())

    monkeypatch.setattr(session, "_require_ready", check)
    monkeypatch.setattr(session, "_perform", lambda _files, wave, *_: performed.append(wave.name))
    if takes_over:
        run_migration(files, Said(), Options(takes_over=True))
    else:
        with pytest.raises(ConfigError, match=rf"conductor 1 on .* \(pid {os.getppid()}\) is running: end it first"):
            run_migration(files, Said())
    conductor = read_state(files).conductor
    assert conductor is not None
    assert (conductor.epoch, performed) == ((2, ["all"]) if takes_over else (1, []))


@pytest.mark.parametrize("is_of_another_migration", [False, True])
def test_what_a_suspended_conductor_has_handed_over_behind_an_abort_is_taken_back_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_another_migration: bool
) -> None:
    def add(config: MirrorConfig, action: ControlAction, topics: Sequence[str]) -> None:
        """Ask no cluster, as there is none."""
        Controls.open(config.tables).add(action, topics)

    monkeypatch.setattr(passage_module, "add_noted", add)
    monkeypatch.setattr(Passage, "listed_topics", lambda _: ("orders",))
    files = written(tmp_path)
    suspended = 1 if is_of_another_migration else os.getpid()
    taken_over(files, os.getpid()).append(event=BEGUN, wave="all", detail={"direction": "move"})
    elsewhere = taken_over(files, os.getppid())
    elsewhere.append(event=ABORTED, wave="all")
    elsewhere.append(event=ENDED)
    controls = Controls.open(files.mirror.tables)
    with monkeypatch.context() as suspended_process:
        suspended_process.setattr(os, "getpid", lambda: suspended)
        controls.add("hand-over", ["orders"])
    if is_of_another_migration:
        with pytest.raises(ConfigError, match="nothing is under way that could be aborted: wave all is at the source"):
            abort(files, Said())
    else:
        assert abort(files, Said()).taken_back == ["orders"]
    assert controls.read().moving == ({"orders"} if is_of_another_migration else set())


def test_what_a_rollback_has_handed_over_behind_one_that_was_aborted_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Passage, "listed_topics", lambda _: ("orders",))
    files = written(tmp_path)
    owner = taken_over(files, os.getpid())
    for direction, event in (("move", DONE), ("rollback", ABORTED), ("rollback", DONE)):
        owner.append(event=BEGUN, wave="all", detail={"direction": direction})
        owner.append(event=event, wave="all", step=Step.REPORT.value)
    Controls.open(files.reverses["all"].tables).add("hand-over", ["orders"])
    with pytest.raises(ConfigError, match="nothing is under way that could be aborted: wave all is rolled back"):
        abort(files, Said())


@pytest.mark.parametrize("command", [run_migration, roll_back])
@pytest.mark.parametrize("direction", ["move", "rollback"])
def test_no_wave_begins_while_one_is_under_way_that_the_file_has_under_another_name(
    tmp_path: Path, command: Callable[..., Any], direction: str
) -> None:
    files = written(tmp_path)
    owner = taken_over(files, os.getpid())
    owner.append(event=BEGUN, wave="former", detail={"direction": direction})
    owner.append(event=ENDED)
    rows = len(owner.rows())
    with pytest.raises(ConfigError, match="waves: former is under way or has moved, and is not in the migration file any more"):
        command(files, Said())
    assert len(owner.rows()) == rows


def test_late_writes_of_a_wave_that_the_file_does_not_have_any_more_are_not_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = written(tmp_path)
    owner = taken_over(files, os.getpid())
    owner.append(event=BEGUN, wave="former", detail={"direction": "move"})
    ends = {"origin_ends": {"orders": {"0": 20}}, "writers_stopped_s": 1.0}
    owner.append(event=DONE, wave="former", step=Step.POINT_OF_NO_RETURN.value, detail=ends)
    owner.append(event=ENDED)
    with pytest.raises(SystemExit) as ended:
        cli.main(["migrate", "late-writes", files.config.path])
    unknown = (
        "former: unknown: waves: former is under way or has moved, and is not in the migration file any more: undo that change\n"
    )
    assert (ended.value.code, capsys.readouterr().out) == (1, unknown)
    assert f"late writes: {unknown.removeprefix('former: ')}" in shown(files, capsys)


def shown(files: MigrationFiles, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `migrate status` prints."""
    view.show_state(read_state(files), files, as_json=False)
    return capsys.readouterr().out
