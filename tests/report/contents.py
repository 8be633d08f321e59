"""Reports of mirrors that never ran, in any size."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints.logs.runs import CountedProblem, Problem, ProblemKind, RecordedVerification
from shallow_mirror.operations.status import RunStatus, StatusReport
from shallow_mirror.report.offset_map_chart import MapPicture, map_picture
from shallow_mirror.report.page import ReportContent
from shallow_mirror.report.time_series import history_of
from shallow_mirror.report.verifications import ShownVerification
from shallow_mirror.streaming.watch import PartitionStatus
from shallow_mirror.types import SourcePartition, TopicPartition

EVIL = "<script>alert('x')</script>&\"'"
BEGIN = datetime(2026, 11, 20, 8, tzinfo=UTC)


def row(number: int, **changes: Any) -> dict[str, Any]:
    """Of `micro_batches`: one every two seconds, half a second each."""
    steps = {"Between": 80.0, "TakeDecision": 15.0, "RunSlots": 300.0, "SlowestSlot": 200.0, "Decide": 21.0, "EndTxn": 3.0}
    made = {
        "run_epoch": 1,
        "micro_batch": number,
        "fetched_bytes": 1_100_000,
        "size_bytes": 1_000_000,
        "batch_count": 12,
        "raw_batch_count": 10,
        "rebuilt_batch_count": 2,
        "record_count": 500,
        "dropped_batch_counts": json.dumps({"aborted": 1, "commit": 2}),
        "duration_ms": json.dumps({**steps, "AwaitVisible": 9.0, "Settle": 2.0, "Total": 500.0}),
        "lag_offsets": 100,
        "settled_at": BEGIN + timedelta(seconds=2 * number),
    }
    return made | changes


def rows_of_a_day(count: int) -> list[dict[str, Any]]:
    """With hills and valleys, an hour of standstill, and now and then a batch in quarantine."""
    rows = []
    for number in range(1, count + 1):
        wave = 1.2 + math.sin(number / max(10, count / 9)) + 0.2 * (number * 7919 % 100) / 100
        later = timedelta(hours=1) if number > count * 0.7 else timedelta()
        dropped = {"aborted": 1, "commit": 2} | ({"quarantined": 1} if number % max(2, count // 7) == 0 else {})
        busy_ms = 200 * wave
        steps = {
            "Between": 80 * wave,
            "TakeDecision": 15,
            "RunSlots": 100 + busy_ms,
            "SlowestSlot": busy_ms,
            "Decide": 20,
            "EndTxn": 9,
        }
        rows.append(
            row(
                number,
                size_bytes=int(1e6 * wave),
                record_count=int(500 * wave),
                raw_batch_count=int(20 * wave),
                rebuilt_batch_count=number % 4,
                lag_offsets=None if number % 11 == 0 else int(max(0, 900 * (wave - 0.9))),
                dropped_batch_counts=json.dumps(dropped),
                duration_ms=json.dumps({**steps, "Total": 150 + busy_ms}),
                settled_at=BEGIN + timedelta(seconds=2 * number) + later,
            )
        )
    return rows


def many_rows(count: int) -> list[dict[str, Any]]:
    """Build rows that repeat a thousand different ones."""
    day_rows = rows_of_a_day(1_000)
    return [
        day_rows[number % 1_000] | {"micro_batch": number + 1, "settled_at": BEGIN + timedelta(seconds=2 * number)}
        for number in range(count)
    ]


def map_rows(*segments: tuple[int, int, str, int | None, int]) -> pa.Table:
    """Build rows of (source start, source end, kind, target start, rebuilt batches)."""
    columns = ["source_start", "source_end", "kind", "target_start", "rebuilt_batch_count"]
    types = [pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.int32()]
    return pa.table(
        {name: pa.array(values, kind) for name, kind, values in zip(columns, types, zip(*segments, strict=True), strict=True)}
    )


def a_picture(source: SourcePartition, transactions: int) -> MapPicture | None:
    """Transactions of 40 records and a marker, some aborted; a stretch that expired, one in quarantine."""
    segments: list[tuple[int, int, str, int | None, int]] = [(0, 300, "expired", None, 0)]
    at, target = 300, 0
    for number in range(transactions):
        is_aborted = number % 5 == 4
        segments.append((at, at + 40, "aborted" if is_aborted else "data", None if is_aborted else target, int(number % 7 == 0)))
        target += 0 if is_aborted else 42
        segments.append((at + 40, at + 41, "abort" if is_aborted else "commit", None, 0))
        at += 41
    segments += [(at, at + 30, "gap", None, 0), (at + 30, at + 90, "quarantined", None, 0)]
    return map_picture(source, map_rows(*segments))


def a_verification(topic: str, **result: Any) -> ShownVerification:
    """One of a topic; `result` as `VerifyReport.summary`."""
    found = {
        "partition_count": 12,
        "record_count": 4_000,
        "difference_counts": {},
        "uncovered_count": 0,
        "uncovered": [],
        "unchecked_offsets": 0,
    }
    recorded = RecordedVerification(
        audit_id="a",
        scope={"topics": [topic], "deep": False},
        host="here",
        version="0.1",
        began_at_ms=1_795_000_000_000,
        finished_at_ms=1_795_000_900_000,
        result={**found, **result},
        ends={},
    )
    return ShownVerification(recorded=recorded, copied_since_offsets=70, other_partitions=0)


def content(rows: Sequence[Mapping[str, Any]] = (), *, name: str = "orders-east-west", transactions: int = 0) -> ReportContent:
    place = SourcePartition(name, "id", 3)
    partitions = tuple(
        PartitionStatus(
            source=place._replace(partition=number), position=9_000, end=9_000 + lag, lag_offsets=lag, lag_ms=lag * 10
        )
        for number, lag in enumerate((0, 120, 7))
    )
    run = RunStatus(
        run_epoch=2, run_id="r", host=name, pid=7, version="0.1", started_at_ms=1_795_000_000_000, ended_at_ms=None, outcome=None,
        is_alive=True,
    )  # fmt: skip
    status = StatusReport(
        mirror=name, at_ms=1_795_200_000_000, run=run if rows else None, source_problem=name if not rows else None, waiting_for=None,
        waiting_since_ms=None, planned_at_ms=None, micro_batches=(), partitions=partitions if rows else (),
    )  # fmt: skip
    problem = Problem(
        kind=ProblemKind.RETRIABLE, text=f"query: NETWORK_EXCEPTION: cannot connect to {name}", remedy=f"see that {name} runs",
        error_name="NETWORK_EXCEPTION", place=TopicPartition(name, 3),
    )  # fmt: skip
    counted_problem = CountedProblem(
        run_epoch=2, number=1, problem=problem, occurrences=1_234, first_at_ms=1_795_000_000_000, last_at_ms=1_795_100_000_000
    )
    runs = [
        {
            "run_epoch": 1,
            "run_id": "q",
            "host": name,
            "pid": 6,
            "version": "0.1",
            "started_at": BEGIN,
            "ended_at": BEGIN,
            "outcome": "done",
        },
        {
            "run_epoch": 2,
            "run_id": "r",
            "host": name,
            "pid": 7,
            "version": "0.1",
            "started_at": BEGIN,
            "ended_at": None,
            "outcome": None,
        },
    ]
    return ReportContent(
        status=status,
        source=name,
        target="west",
        version="0.1",
        micro_batch_count=len(rows),
        is_cut=False,
        history=history_of(rows),
        problems=[counted_problem] if rows else [],
        runs=runs if rows else [],
        pauses=[],
        verifications=[a_verification(name)] if rows else [],
        picture=a_picture(place, transactions) if rows else None,
    )
