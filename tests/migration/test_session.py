"""Two commands of one migration, and waves that the file does not have any more."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.migration.test_late_writes import Said
from tests.test_migration_file import written

from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs import MigrationLog, MigrationOwner
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config.migration_config import MigrationFiles
from shallow_mirror.errors import ConfigError
from shallow_mirror.migration import Options, read_state, run_migration, session
from shallow_mirror.migration.newest_row import NewestRow


@pytest.fixture(autouse=True)
def _without_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is there to note the newest row of the table."""
    monkeypatch.setattr(NewestRow, "require_in", lambda _, read: read())
    monkeypatch.setattr(NewestRow, "note", lambda *_: None)


def taken_over(files: MigrationFiles, pid: int) -> MigrationOwner:
    """Take over the migration as another process of this machine."""
    log = MigrationLog.open(TableStorage(files.config.table_location), "m")
    return log.take_over(replace(RunIdentity.of_this_process(), pid=pid), files.fingerprint, lambda: 0)


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
