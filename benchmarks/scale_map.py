"""Offset maps of `benchmarks/scale.py`: how they grow with decisions, and a start from one of millions of rows."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.ledger.commits import COMPACT_EVERY_DECISIONS
from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation, RunHistory
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP, rows_to_arrow, table_uri
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.tables.table_protocol import TOMBSTONE_RETENTION
from shallow_mirror.config import parse_duration
from shallow_mirror.types import (
    Segment,
    SegmentKind,
    SlotTxn,
    SourcePartition,
    TargetPartition,
)

DECISION_EVERY_S = 2
TOMBSTONES = "delta.deletedFileRetentionDuration"
TOMBSTONES_KEPT_S = parse_duration(TOMBSTONE_RETENTION.removeprefix("interval "))
MAP_PARTITIONS = 8
RECORDS_A_DECISION = 100
ROWS_A_FILE = 400_000
FIRST_MS = 1_700_000_000_000


def source_of(partition: int) -> SourcePartition:
    return SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", partition)


def target_of(partition: int) -> TargetPartition:
    return TargetPartition("orders", "tgttgttgttgttgttgttgtA", partition)


def decided(partition: int, number: int) -> DecidedSegment:
    """Of one micro-batch; in each of them a marker of our own lies between the records on the target."""
    start, target_start = number * RECORDS_A_DECISION, number * (RECORDS_A_DECISION + 1)
    segment = Segment(
        source=source_of(partition),
        source_start=start,
        source_end=start + RECORDS_A_DECISION,
        kind=SegmentKind.DATA,
        target=target_of(partition),
        target_start=target_start,
        target_end=target_start + RECORDS_A_DECISION,
        record_count=RECORDS_A_DECISION,
        batch_count=3,
        size_bytes=30_000,
        max_timestamp_ms=FIRST_MS + number * DECISION_EVERY_S * 1000,
        source_leader_epoch=4,
    )
    return DecidedSegment(segment, SlotTxn(f"scale-{partition % 2}", 1000 + partition % 2, number % 30_000))


def observed(number: int) -> MicroBatchObservation:
    return MicroBatchObservation(
        run_epoch=1,
        micro_batch=number,
        fetched_bytes=30_000 * MAP_PARTITIONS,
        size_bytes=30_000 * MAP_PARTITIONS,
        batch_count=3 * MAP_PARTITIONS,
        rebuilt_batch_count=0,
        record_count=RECORDS_A_DECISION * MAP_PARTITIONS,
        dropped_batch_counts={},
        duration_ms={"TakeDecision": 1.0, "RunSlots": 100.0, "Decide": 20.0, "EndTxn": 3.0, "Total": 130.0},
        lag_offsets=0,
        settled_at_ms=FIRST_MS + number * DECISION_EVERY_S * 1000,
    )


def owner_of(folder: Path) -> LedgerOwner:
    owner = LedgerOwner.take_over(
        str(folder), name="scale", source_cluster_id="east", target_cluster_id="west",
        run=RunIdentity.of_this_process(), now_ms=lambda: int(time.time() * 1000),
    )  # fmt: skip
    owner.settle()
    return owner


def with_tombstones_of(folder: Path, seconds: float) -> LedgerOwner:
    """Of a new map that forgets replaced files after that long. Tables beside it keep their hours."""
    owner_of(folder)
    DeltaTable(table_uri(str(folder))).alter.set_table_properties({TOMBSTONES: f"interval {round(seconds)} seconds"})
    return owner_of(folder)


def measure_growth(folder: Path, decisions: int, pace_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row for every compaction: medians of a decision and of its observation, maintenance time, files that exist.

    `pace_s` stands for DECISION_EVERY_S: tombstones are forgotten in that proportion. What is late is made up for.
    """
    owner = with_tombstones_of(folder, TOMBSTONES_KEPT_S * pace_s / DECISION_EVERY_S)
    observations = RunHistory(TableStorage(str(folder)).best_effort_tables())
    decide, observe = list[float](), list[float]()
    first = time.monotonic()
    for number in range(decisions):
        time.sleep(max(0.0, first + number * pace_s - time.monotonic()))
        rows = [decided(partition, number) for partition in range(MAP_PARTITIONS)]
        began = time.perf_counter()
        owner.next_decision()
        owner.decide(rows, highest_slot=1)
        decide.append(time.perf_counter() - began)
        began = time.perf_counter()
        observations.micro_batch(observed(number))
        observe.append(time.perf_counter() - began)
        began = time.perf_counter()
        if owner.compact_if_due():
            maintenance = time.perf_counter() - began
            yield {
                "decisions": number + 1,
                "late_s": round(max(0.0, time.monotonic() - first - (number + 1) * pace_s)),
                "decide_ms": round(1000 * statistics.median(decide[-1000:]), 1),
                "decide_p99_ms": round(1000 * statistics.quantiles(decide[-1000:], n=100)[98], 1),
                "observe_ms": round(1000 * statistics.median(observe[-1000:]), 1),
                "maintenance_s": round(maintenance, 2),
                **{
                    f"{name}_{what}": value
                    for name in ("offset_map", "micro_batches")
                    for what, value in table_figures(folder / name)
                },
            }
            decide.clear()
            observe.clear()


def table_figures(table: Path) -> Iterator[tuple[str, float]]:
    data, log = list(table.glob("*.parquet")), list((table / "_delta_log").iterdir())
    began = time.perf_counter()
    live_files = len(DeltaTable(str(table)).file_uris())
    yield "open_ms", round(1000 * (time.perf_counter() - began), 1)
    yield "files", len(data)
    yield "live_files", live_files
    yield "mb", round(sum(file.stat().st_size for file in data) / 1e6, 1)
    yield "log_files", len(log)
    yield "log_mb", round(sum(file.stat().st_size for file in log) / 1e6, 1)


def many_rows(first: int, count: int) -> pa.Table:
    """Rows of `decided` as columns."""
    row = np.arange(first, first + count, dtype=np.int64)
    partition, number = (row % MAP_PARTITIONS).astype(np.int32), row // MAP_PARTITIONS
    given = {
        "source_partition": partition,
        "source_start": number * RECORDS_A_DECISION,
        "source_end": (number + 1) * RECORDS_A_DECISION,
        "target_partition": partition,
        "target_start": number * (RECORDS_A_DECISION + 1),
        "target_end": number * (RECORDS_A_DECISION + 1) + RECORDS_A_DECISION,
        "size_bytes": 30_000 + row * 7919 % 1000,
        "max_timestamp_ms": FIRST_MS + number * DECISION_EVERY_S * 1000,
        "target_producer_epoch": (number % 30_000).astype(np.int32),
        "micro_batch": number + 1,
        "decided_at": (FIRST_MS + number * DECISION_EVERY_S * 1000) * 1000,
    }
    alike = rows_to_arrow([decided(0, 0)], 1, 1, FIRST_MS)
    columns = [
        pa.array(given[field.name]).cast(field.type) if field.name in given else pa.repeat(alike[field.name][0], count)
        for field in OFFSET_MAP
    ]
    return pa.table(columns, schema=OFFSET_MAP)


def build_map(folder: Path, rows: int) -> None:
    """As a mirror leaves it: files of compactions, and a file for each decision since the last one."""
    owner, writer = owner_of(folder), DeltalakeWriter(table_uri(str(folder)))
    alone = COMPACT_EVERY_DECISIONS - 1
    together = rows // MAP_PARTITIONS * MAP_PARTITIONS - alone * MAP_PARTITIONS
    for first in range(0, together, ROWS_A_FILE):
        table, recorded = many_rows(first, min(ROWS_A_FILE, together - first)), owner.recorded()
        micro_batch = int(table["micro_batch"][-1].as_py())
        written = replace(recorded, version=recorded.version + 2, micro_batch=micro_batch, row_count=first + table.num_rows)
        written = replace(written, compacted_micro_batch=micro_batch)
        writer.append(writer.snapshot(), table, written.version, written.metadata())
        owner = owner_of(folder)
    for number in range(together // MAP_PARTITIONS, together // MAP_PARTITIONS + alone):
        owner.next_decision()
        owner.decide([decided(partition, number) for partition in range(MAP_PARTITIONS)], highest_slot=1)
    owner.settle()


START = """
import resource, sys, time
from benchmarks.scale_map import owner_of
from pathlib import Path
began = time.perf_counter()
positions = owner_of(Path(sys.argv[1])).positions()
print(len(positions), time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure_start(folder: Path, rows: int) -> dict[str, Any]:
    """Measure what a start reads of the map: take-over, resolution of nothing, positions. In a process of its own."""
    build_map(folder / "tables", rows)
    command = [sys.executable, "-c", START, str(folder / "tables")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    size = sum(file.stat().st_size for file in (folder / "tables" / "offset_map").glob("*.parquet"))
    return {
        "rows": rows,
        "map_mb": round(size / 1e6, 1),
        "take_over_and_positions_s": round(float(output[1]), 2),
        "peak_rss_mb": round(int(output[2]) / 1e3),
    }
