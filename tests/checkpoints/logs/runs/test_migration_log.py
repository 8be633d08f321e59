"""The table of a migration: rows in order, one owner at a time, and nothing of another migration."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs.migration_log import MigrationLog, MigrationOwner
from shallow_mirror.checkpoints.rows import TAKEN_OVER
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError, FencedError


def clock() -> Callable[[], int]:
    moments = itertools.count(1_000, 1_000)
    return lambda: next(moments)


def take_over(folder: Path, migration: str = "m") -> MigrationOwner:
    log = MigrationLog.open(TableStorage(str(folder)), migration)
    return log.take_over(RunIdentity.of_this_process(), "f", clock())


@pytest.mark.slow
def test_rows_are_read_back_in_their_order(tmp_path: Path) -> None:
    assert MigrationLog.open(TableStorage(str(tmp_path)), "m").rows() == ()
    owner = take_over(tmp_path)
    for number in range(3):
        owner.append(event="done", wave="w", step=f"{number}", detail={"number": number})
    rows = MigrationLog.open(TableStorage(str(tmp_path)), "m").rows()
    assert [(row.sequence, row.event, row.step, row.detail) for row in rows] == [
        (1, TAKEN_OVER, "", {}),
        (2, "done", "0", {"number": 0}),
        (3, "done", "1", {"number": 1}),
        (4, "done", "2", {"number": 2}),
    ]
    assert {row.conductor_epoch for row in rows} == {1}
    assert owner.rows() == rows


def test_a_conductor_that_was_taken_over_writes_and_reads_nothing_more(tmp_path: Path) -> None:
    first = take_over(tmp_path)
    second = take_over(tmp_path)
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(FencedError, match="conductor 2 on "):
        first.append(event="done", wave="w", step="check")
    with pytest.raises(FencedError):
        first.rows()
    second.append(event="done", wave="w", step="check")
    assert [row.conductor_epoch for row in second.rows()] == [1, 2, 2]


def test_the_table_of_another_migration_is_refused(tmp_path: Path) -> None:
    take_over(tmp_path)
    with pytest.raises(ConfigError, match="is of migration 'm', not of 'other'"):
        take_over(tmp_path, "other")
