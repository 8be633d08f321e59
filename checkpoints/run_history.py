"""Driver: what a mirror records about itself in `micro_batches` and `runs`. Losing it loses no data and stops nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.problem_log import PROBLEMS_TABLE
from shallow_mirror.checkpoints.quarantine.batches import QUARANTINE_TABLE
from shallow_mirror.checkpoints.schema import TIMESTAMP
from shallow_mirror.checkpoints.verify_log import AUDIT_TABLE

MICRO_BATCHES_TABLE = "micro_batches"
RUNS_TABLE = "runs"

TIDY_EVERY_MICRO_BATCHES = 1000

MICRO_BATCHES = pa.schema(
    [
        ("run_epoch", pa.int32()),
        ("micro_batch", pa.int64()),
        ("fetched_bytes", pa.int64()),
        ("size_bytes", pa.int64()),
        ("batch_count", pa.int64()),
        ("raw_batch_count", pa.int64()),
        ("rebuilt_batch_count", pa.int64()),
        ("record_count", pa.int64()),
        ("dropped_batch_counts", pa.string()),
        ("duration_ms", pa.string()),
        ("lag_offsets", pa.int64()),
        ("settled_at", TIMESTAMP),
    ]
)

RUNS = pa.schema(
    [
        ("run_epoch", pa.int32()),
        ("run_id", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("version", pa.string()),
        ("started_at", TIMESTAMP),
        ("ended_at", TIMESTAMP),
        ("outcome", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchObservation:
    """`dropped_batch_counts` by segment kind, `duration_ms` by step; both are JSON in the table.

    `lag_offsets`: how far positions are behind the log ends of its plan after it, over all partitions; with available-now
    behind the ends of the start. None when this run did not plan it: a micro-batch begun by a killed run is done as it was
    planned then.
    """

    run_epoch: int
    micro_batch: int
    fetched_bytes: int
    size_bytes: int
    batch_count: int
    rebuilt_batch_count: int
    record_count: int
    dropped_batch_counts: Mapping[str, int]
    duration_ms: Mapping[str, float]
    lag_offsets: int | None
    settled_at_ms: int


class RunHistory:
    def __init__(self, tables: BestEffortTables, *, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._tables, self._now_ms = tables, now_ms

    def micro_batch(self, observed: MicroBatchObservation) -> None:
        row = {name: getattr(observed, name) for name in MICRO_BATCHES.names if hasattr(observed, name)}
        row |= {
            "raw_batch_count": observed.batch_count - observed.rebuilt_batch_count,
            "dropped_batch_counts": json.dumps(dict(observed.dropped_batch_counts)),
            "duration_ms": json.dumps({step: round(ms, 1) for step, ms in observed.duration_ms.items()}),
            "settled_at": observed.settled_at_ms * 1000,
        }
        self._append(MICRO_BATCHES_TABLE, MICRO_BATCHES, row)
        if observed.micro_batch % TIDY_EVERY_MICRO_BATCHES == 0:
            self._tables.tidy(MICRO_BATCHES_TABLE)

    def run_started(self, run_epoch: int, run: RunIdentity, version: str) -> None:
        """`version` is that of shallow-mirror. A run has one row with `outcome` null, and a second one once it ended.

        Tables that consist of many files by now are compacted.
        """
        self._append(RUNS_TABLE, RUNS, {**_run(run_epoch, run), "version": version})
        for table in (RUNS_TABLE, MICRO_BATCHES_TABLE, PROBLEMS_TABLE, AUDIT_TABLE, QUARANTINE_TABLE):
            self._tables.tidy(table)

    def run_ended(self, run_epoch: int, run: RunIdentity, outcome: str) -> None:
        self._append(RUNS_TABLE, RUNS, {**_run(run_epoch, run), "ended_at": self._now_ms() * 1000, "outcome": outcome})
        self._tables.flush()

    def _append(self, table: str, schema: pa.Schema, row: Mapping[str, Any]) -> None:
        rows = pa.table([pa.array([row.get(field.name)], field.type) for field in schema], schema=schema)
        self._tables.append(table, rows)


def _run(run_epoch: int, run: RunIdentity) -> dict[str, Any]:
    return {
        "run_epoch": run_epoch,
        "run_id": run.run_id,
        "host": run.host,
        "pid": run.pid,
        "started_at": run.started_at_ms * 1000,
    }
