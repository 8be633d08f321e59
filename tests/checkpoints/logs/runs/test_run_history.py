"""Observations are appended for people; that they cannot be written stops nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.observed import OBSERVED

from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs import run_history as observations_module
from shallow_mirror.checkpoints.logs.runs.run_history import RunHistory
from shallow_mirror.checkpoints.tables import TableStorage, best_effort_tables as module
from shallow_mirror.checkpoints.tables.table_protocol import TOMBSTONE_RETENTION

RUN = RunIdentity(run_id="r", host="h", pid=7, started_at_ms=1000)


def test_a_micro_batch_is_one_row(tmp_path: Path) -> None:
    observations = RunHistory(TableStorage(str(tmp_path)).best_effort_tables())
    observations.micro_batch(OBSERVED)
    observations.micro_batch(OBSERVED)
    rows = DeltaTable(str(tmp_path / "micro_batches")).to_pyarrow_dataset().to_table().to_pylist()
    assert len(rows) == 2
    row = rows[0]
    assert (row["raw_batch_count"], row["rebuilt_batch_count"], row["record_count"], row["lag_offsets"]) == (8, 2, 50, None)
    assert (json.loads(row["dropped_batch_counts"]), json.loads(row["duration_ms"])["RunSlots"]) == ({"aborted": 3}, 12.3)
    assert row["settled_at"].timestamp() == 5


def test_a_run_has_a_row_for_its_start_and_one_for_its_end(tmp_path: Path) -> None:
    observations = RunHistory(TableStorage(str(tmp_path)).best_effort_tables(), now_ms=lambda: 9000)
    observations.run_started(3, RUN, "0.1")
    observations.run_ended(3, RUN, "done")
    rows = DeltaTable(str(tmp_path / "runs")).to_pyarrow_dataset().to_table().sort_by("outcome").to_pylist()
    assert [(row["run_epoch"], row["run_id"], row["version"], row["outcome"]) for row in rows] == [
        (3, "r", None, "done"),
        (3, "r", "0.1", None),
    ]
    assert rows[0]["ended_at"].timestamp() == 9


def test_an_observation_that_cannot_be_written_is_logged_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "micro_batches").write_text("a file where the table should be")
    RunHistory(TableStorage(str(tmp_path)).best_effort_tables()).micro_batch(OBSERVED)
    assert "could not write an observation to micro_batches" in caplog.text


def test_a_table_of_other_columns_is_logged_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_deltalake(str(tmp_path / "runs"), pa.table({"a": [1]}))
    RunHistory(TableStorage(str(tmp_path)).best_effort_tables()).run_started(1, RUN, "0.1")
    assert "could not write an observation to runs" in caplog.text


def rows_of(tables: Path, table: str) -> list[str]:
    return sorted(map(str, DeltaTable(str(tables / table)).to_pyarrow_dataset().to_table().to_pylist()))


def test_a_table_of_many_files_becomes_few_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY_FILES", 4)
    monkeypatch.setattr(observations_module, "TIDY_EVERY_MICRO_BATCHES", 5)
    observations = RunHistory(TableStorage(str(tmp_path)).best_effort_tables())
    for number in range(1, 5):
        observations.micro_batch(replace(OBSERVED, micro_batch=number))
    before = rows_of(tmp_path, "micro_batches")
    assert len(DeltaTable(str(tmp_path / "micro_batches")).file_uris()) == 4
    observations.micro_batch(replace(OBSERVED, micro_batch=5))
    table = DeltaTable(str(tmp_path / "micro_batches"))
    assert len(table.file_uris()) == 1
    assert set(before) < set(rows_of(tmp_path, "micro_batches"))
    observations.micro_batch(replace(OBSERVED, micro_batch=6))
    assert len(rows_of(tmp_path, "micro_batches")) == 6


def test_a_start_tidies_every_table_also_one_that_has_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY_FILES", 3)
    for table in ("audit", "quarantine"):
        for number in range(3):
            write_deltalake(str(tmp_path / table), pa.table({"a": [number]}), mode="append")
    RunHistory(TableStorage(str(tmp_path)).best_effort_tables()).run_started(1, RUN, "0.1")
    for table in ("audit", "quarantine"):
        actual = DeltaTable(str(tmp_path / table))
        assert len(actual.file_uris()) == 1
        assert sorted(actual.to_pyarrow_dataset().to_table()["a"].to_pylist()) == [0, 1, 2]
        assert actual.metadata().configuration["delta.deletedFileRetentionDuration"] == TOMBSTONE_RETENTION


def test_a_table_that_cannot_be_tidied_is_logged_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MANY_FILES", 1)
    write_deltalake(str(tmp_path / "audit"), pa.table({"a": [1]}), mode="append")
    for file in (tmp_path / "audit").glob("*.parquet"):
        file.write_bytes(b"garbage")
    write_deltalake(str(tmp_path / "audit"), pa.table({"a": [2]}), mode="append")
    RunHistory(TableStorage(str(tmp_path)).best_effort_tables()).run_started(1, RUN, "0.1")
    assert "maintenance of the table audit failed" in caplog.text
    assert len(rows_of(tmp_path, "runs")) == 1
