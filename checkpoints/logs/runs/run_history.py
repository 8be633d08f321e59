"""Driver: what a mirror records about itself in `micro_batches` and `runs`. Losing it loses no data and stops nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from shallow_mirror.checkpoints.ledger.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.logs.quarantined_batches import QUARANTINE_TABLE
from shallow_mirror.checkpoints.logs.runs.problem_log import PROBLEMS_TABLE
from shallow_mirror.checkpoints.logs.runs.verify_log import AUDIT_TABLE
from shallow_mirror.checkpoints.rows.codec import Int32, Json, TimeMs, row_codec
from shallow_mirror.checkpoints.tables.best_effort_tables import BestEffortTables

MICRO_BATCHES_TABLE = "micro_batches"
RUNS_TABLE = "runs"

TIDY_EVERY_MICRO_BATCHES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchObservation:
    """A row of the table `micro_batches`."""

    run_epoch: Int32
    micro_batch: int
    fetched_bytes: int
    size_bytes: int
    batch_count: int
    raw_batch_count: int = field(init=False)
    rebuilt_batch_count: int
    record_count: int
    dropped_batch_counts: Annotated[Mapping[str, int], Json()]
    """By segment kind."""
    duration_ms: Annotated[Mapping[str, float], Json()]
    """By step."""
    lag_offsets: int | None
    """How far positions are behind the log ends of its plan after it, over all partitions; with available-now behind the ends of
    the start. None when this run did not plan it: a micro-batch begun by a killed run is done as it was planned then."""
    settled_at_ms: TimeMs

    def __post_init__(self) -> None:
        object.__setattr__(self, "raw_batch_count", self.batch_count - self.rebuilt_batch_count)


MICRO_BATCHES = row_codec(MicroBatchObservation)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A row of the table `runs`: a run has one with `outcome` null, and a second one once it ended."""

    run_epoch: Int32
    run_id: str
    host: str
    pid: int
    version: str | None = None
    started_at_ms: TimeMs
    ended_at_ms: TimeMs | None = None
    outcome: str | None = None

    @classmethod
    def of(cls, run_epoch: int, run: RunIdentity, **values: Any) -> RunRow:
        return cls(run_epoch=run_epoch, run_id=run.run_id, host=run.host, pid=run.pid, started_at_ms=run.started_at_ms, **values)


RUNS = row_codec(RunRow)


class RunHistory:
    def __init__(self, tables: BestEffortTables, *, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._tables, self._now_ms = tables, now_ms

    def micro_batch(self, observed: MicroBatchObservation) -> None:
        rounded = {step: round(ms, 1) for step, ms in observed.duration_ms.items()}
        rows = row_codec(MicroBatchObservation).to_arrow([replace(observed, duration_ms=rounded)])
        self._tables.append(MICRO_BATCHES_TABLE, rows)
        if observed.micro_batch % TIDY_EVERY_MICRO_BATCHES == 0:
            self._tables.tidy(MICRO_BATCHES_TABLE)

    def run_started(self, run_epoch: int, run: RunIdentity, version: str) -> None:
        """Record a run of this version of shallow-mirror. Tables that consist of many files by now are compacted."""
        self._append(RunRow.of(run_epoch, run, version=version))
        for table in (RUNS_TABLE, MICRO_BATCHES_TABLE, PROBLEMS_TABLE, AUDIT_TABLE, QUARANTINE_TABLE):
            self._tables.tidy(table)

    def run_ended(self, run_epoch: int, run: RunIdentity, outcome: str) -> None:
        self._append(RunRow.of(run_epoch, run, ended_at_ms=self._now_ms(), outcome=outcome))
        self._tables.flush()

    def _append(self, row: RunRow) -> None:
        self._tables.append(RUNS_TABLE, RUNS.to_arrow([row]))


@dataclass(slots=True)
class RunEnd:
    """How a run ended, as `runs` has it."""

    outcome: str = "failed"


@contextmanager
def recorded_run(
    tables: BestEffortTables,
    run_epoch: int,
    run: RunIdentity,
    version: str,
    outcome: str,
    *,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> Iterator[RunEnd]:
    """Record an operator's command that has taken over: its start, and its end with the outcome that the block has set.

    `outcome`: of a block that sets none, or that an error ended before it did.
    """
    history, end = RunHistory(tables, now_ms=now_ms), RunEnd(outcome)
    history.run_started(run_epoch, run, version)
    try:
        yield end
    finally:
        history.run_ended(run_epoch, run, end.outcome)
