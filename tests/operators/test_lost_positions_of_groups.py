"""Positions of groups that the tables have lost are recorded again with the next pass: a fail-over goes by them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import Life
from tests.operators.surroundings import opened_world

from shallow_mirror.checkpoints.logs import positions_as_of
from shallow_mirror.checkpoints.tables import BestEffortTables, TableStorage, best_effort_tables
from shallow_mirror.checkpoints.tables.best_effort_tables import BackgroundTables, ForegroundTables, TableRows, append_in_order
from shallow_mirror.groups.sync import WHOLE_EVERY_S, GroupSyncer

pytestmark = pytest.mark.usefixtures("without_logging")

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
WHOLE = timedelta(seconds=WHOLE_EVERY_S)
"""After so long a pass records all positions."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with opened_world(tmp_path / "world") as opened:
        opened.create_source_topic("a", 1)
        opened.produce("a", 0, 10)
        for number in range(3):
            opened.source.commit_group(f"g{number}", "a", 0, number)
        assert opened.run(Life()) is None
        yield opened


class Unreachable:
    """Tables whose store takes no rows for a time, or none of `refused`."""

    def __init__(self, tables: BestEffortTables) -> None:
        self._tables, self.is_reached, self.refused = tables, False, ""

    def append(self, table: str, rows: pa.Table) -> bool:
        return self.is_reached and table != self.refused and self._tables.append(table, rows)

    def append_in_order(self, pieces: Sequence[TableRows]) -> bool:
        return append_in_order(self, pieces)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


class FullDiskError(Exception): ...


class FullDisk:
    """A backend whose disk is full for a time, but for the rows of the table `small`."""

    errors = (FullDiskError,)

    def __init__(self, backend: Any) -> None:
        self._backend, self.is_full, self.small = backend, True, ""

    def append(self, table: str, rows: pa.Table) -> None:
        if self.is_full and table != self.small:
            raise FullDiskError
        self._backend.append(table, rows)

    def cause_of(self, _error: Exception, _operation: str, _table: str) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def recorded(tables: BestEffortTables, at: datetime) -> dict[str, int | None]:
    return {position.group: position.offset for position in positions_as_of(tables, at).positions}


def test_rows_that_waited_too_long_for_the_store(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_effort_tables, "MOST_WAITING_ROWS", 1)
    storage = TableStorage.to_write(world.config.table_location, world.config.tables_writer)
    store = Unreachable(storage.best_effort_tables())
    history = BackgroundTables(store)
    syncer = GroupSyncer(world.config, storage, history)
    syncer.run_pass(BEGAN)
    syncer.run_pass(BEGAN + timedelta(seconds=30))
    history.flush()
    assert history.lost_rows("group_offsets") == 3
    store.is_reached = True
    syncer.run_pass(BEGAN + timedelta(minutes=1))
    history.flush()
    syncer.close()
    assert recorded(storage.best_effort_tables(), BEGAN + timedelta(minutes=2)) == {"g0": 0, "g1": 1, "g2": 2}


def test_rows_that_a_full_disk_did_not_take(world: FakeWorld) -> None:
    storage = TableStorage.to_write(world.config.table_location, world.config.tables_writer)
    tables = storage.best_effort_tables()
    assert isinstance(tables, ForegroundTables)
    disk = FullDisk(tables._backend)
    disk.is_full = False
    history = ForegroundTables(disk)
    syncer = GroupSyncer(world.config, storage, history)
    syncer.run_pass(BEGAN)
    world.source.commit_group("g0", "a", 0, 5)
    disk.is_full = True
    syncer.run_pass(BEGAN + timedelta(minutes=1))
    disk.is_full = False
    syncer.run_pass(BEGAN + timedelta(minutes=2))
    syncer.close()
    assert recorded(tables, BEGAN + timedelta(minutes=3)) == {"g0": 5, "g1": 1, "g2": 2}


def test_a_pass_whose_positions_wait_for_the_store_waits_as_well(world: FakeWorld) -> None:
    storage = TableStorage.to_write(world.config.table_location, world.config.tables_writer)
    store = Unreachable(storage.best_effort_tables())
    store.is_reached = True
    history = BackgroundTables(store)
    syncer = GroupSyncer(world.config, storage, history)
    syncer.run_pass(BEGAN)
    history.flush()
    store.refused = "group_offsets"
    syncer.run_pass(BEGAN + WHOLE)
    history.flush()
    assert recorded(storage.best_effort_tables(), BEGAN + 2 * WHOLE) == {"g0": 0, "g1": 1, "g2": 2}
    store.refused = ""
    world.source.commit_group("g0", "a", 0, 5)
    syncer.run_pass(BEGAN + WHOLE + timedelta(minutes=1))
    history.flush()
    syncer.close()
    assert recorded(storage.best_effort_tables(), BEGAN + 2 * WHOLE) == {"g0": 5, "g1": 1, "g2": 2}


def test_a_pass_whose_positions_are_lost_is_not_recorded(world: FakeWorld) -> None:
    storage = TableStorage.to_write(world.config.table_location, world.config.tables_writer)
    tables = storage.best_effort_tables()
    assert isinstance(tables, ForegroundTables)
    disk = FullDisk(tables._backend)
    disk.is_full, disk.small = False, "group_syncs"
    syncer = GroupSyncer(world.config, storage, BackgroundTables(ForegroundTables(disk)))
    syncer.run_pass(BEGAN)
    syncer._history.flush()
    disk.is_full = True
    syncer.run_pass(BEGAN + WHOLE)
    syncer._history.flush()
    syncer.close()
    assert recorded(tables, BEGAN + 2 * WHOLE) == {"g0": 0, "g1": 1, "g2": 2}
