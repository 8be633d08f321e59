"""PYTHONPATH=. python benchmarks/archive_lookup.py: how long one record of a large archive takes to find, without a JVM.

Makes the table of an archive with --rows archived segments of --partitions partitions, in the order in which a capture decides
them, and objects for those that are looked for. Each lookup, by offset and by time, is a process of its own: `process_s` is all
of it, `import_s`, `open_s` and `find_s` are its parts. One JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.interrupts import end_on_sigterm
from shallow_mirror.archive_format import ObjectName
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS, ARCHIVE_SEGMENTS_TABLE, SegmentState
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.wire import build_batch, crc32c
from shallow_mirror.wire.protocol.primitives import uvarint

TOPIC, TOPIC_ID = "orders", "srcsrcsrcsrcsrcsrcsrcA"
RECORDS_PER_ROW = 1_000
ROW_MS = 60_000
"""A row holds a minute of a partition."""
START_MS = 1_700_000_000_000
ROWS_PER_FILE = 100_000
"""About what compaction leaves."""

_LOOKUP = """
import json, resource, sys, time
begun = time.perf_counter()
from shallow_mirror.archive_reading.lookup import ArchiveReader
imported = time.perf_counter()
tables, objects, topic, partition, how = sys.argv[1:6]
reader = ArchiveReader.open(tables, objects)
opened = time.perf_counter()
record = reader.find_record(topic, int(partition), **json.loads(how))
found = time.perf_counter()
print(json.dumps({
    "offset": record.offset, "import_s": imported - begun, "open_s": opened - imported, "find_s": found - opened,
    "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def row_bytes(decision: int) -> bytes:
    """Return the one batch of a row of this decision; those of all partitions are alike."""
    block = b"".join(_record(delta, delta * ROW_MS // RECORDS_PER_ROW) for delta in range(RECORDS_PER_ROW))
    start_ms = START_MS + ROW_MS * decision
    return build_batch(
        block,
        attributes=0,
        base_timestamp=start_ms,
        max_timestamp=start_ms + (RECORDS_PER_ROW - 1) * ROW_MS // RECORDS_PER_ROW,
        records_count=RECORDS_PER_ROW,
        last_offset_delta=RECORDS_PER_ROW - 1,
        base_offset=RECORDS_PER_ROW * decision,
    )


def _record(delta: int, time_delta: int) -> bytes:
    value = bytes(200)
    body = b"\x00" + uvarint(2 * time_delta) + uvarint(2 * delta) + b"\x01" + uvarint(2 * len(value)) + value + b"\x00"
    return uvarint(2 * len(body)) + body


def object_name(archive_id: str, decision: int, partition: int) -> str:
    try_id = f"{crc32c(b'%d %d' % (decision, partition)):08x}"
    return str(
        ObjectName(archive_id=archive_id, run_epoch=1, decision=decision, slot=partition, retention_class=0, try_id=try_id)
    )


def pieces(archive_id: str, rows: int, partitions: int, wanted: dict[int, bytes]) -> Iterator[pa.Table]:
    """Yield the rows in the order of decisions, with sizes, positions and checksums by chance.

    `wanted`: the content of the objects that are looked for, by number of the row.
    """
    chance = np.random.default_rng(1)
    for first in range(0, rows, ROWS_PER_FILE):
        numbers = np.arange(first, min(first + ROWS_PER_FILE, rows), dtype=np.int64)
        decisions, of_partition = numbers // partitions, (numbers % partitions).astype(np.int32)
        starts, newest = decisions * RECORDS_PER_ROW, START_MS + ROW_MS * (decisions + 1) - ROW_MS // RECORDS_PER_ROW
        count = len(numbers)
        bounds = pa.array(np.arange(count + 1, dtype=np.int32))
        sizes, positions = chance.integers(50_000, 500_000, count), chance.integers(0, 256 << 20, count)
        checksums = chance.integers(0, 1 << 32, count)
        for number, content in wanted.items():
            if first <= number < first + count:
                at = number - first
                sizes[at], positions[at], checksums[at] = len(content), 0, crc32c(content)

        def same(value: Any, kind: pa.DataType, count: int = count) -> pa.Array:
            return pa.repeat(pa.scalar(value, kind), count)

        def lists(name: str, columns: Sequence[Any], bounds: pa.Array = bounds) -> pa.Array:
            kind = ARCHIVE_SEGMENTS.field(name).type
            members = [pa.array(column, field.type) for column, field in zip(columns, kind.value_type, strict=True)]
            return pa.ListArray.from_arrays(bounds, pa.StructArray.from_arrays(members, fields=list(kind.value_type)), type=kind)

        names = [object_name(archive_id, *pair) for pair in zip(decisions.tolist(), of_partition.tolist(), strict=True)]
        columns = {
            "source_topic": same(TOPIC, pa.string()),
            "source_topic_id": same(TOPIC_ID, pa.string()),
            "source_partition": of_partition,
            "lineage": np.zeros(count, np.int32),
            "source_start": starts,
            "source_end": starts + RECORDS_PER_ROW,
            "kind": same("data", pa.string()),
            "object_name": names,
            "size_bytes": sizes,
            "batch_count": same(1, pa.int32()),
            "record_count": np.full(count, RECORDS_PER_ROW),
            "min_timestamp_ms": START_MS + ROW_MS * decisions,
            "max_timestamp_ms": newest,
            "source_leader_epoch": same(0, pa.int32()),
            "leader_epochs": lists("leader_epochs", [np.zeros(count, np.int32), starts]),
            "aborted": pa.nulls(count, ARCHIVE_SEGMENTS.field("aborted").type).fill_null([]),
            "index": lists("index", [starts, positions, sizes, newest]),
            "crc32c": checksums,
            "retention_class": same("", pa.string()),
            "state": same(SegmentState.COPY_SEGMENT_FINISHED.value, pa.string()),
            "run_epoch": same(1, pa.int32()),
            "micro_batch": (1 << 32) + decisions,
            "decided_at": pa.array((START_MS + ROW_MS * (decisions + 1)) * 1_000, ARCHIVE_SEGMENTS.field("decided_at").type),
        }
        yield pa.table([pa.array(columns[field.name], field.type) for field in ARCHIVE_SEGMENTS], schema=ARCHIVE_SEGMENTS)


def make_archive(folder: Path, rows: int, partitions: int, wanted: Sequence[tuple[int, int]]) -> None:
    """Make the table, and objects for the `wanted` (decision, partition)."""
    owner = LedgerOwner.take_over(
        str(folder / "tables"),
        layout=ARCHIVE_LAYOUT,
        name="lookup",
        source_cluster_id="source",
        target_cluster_id="archive",
        run=RunIdentity.of_this_process(),
        now_ms=lambda: START_MS,
    )
    store = ObjectStore.open(str(folder / "objects"))
    contents = {}
    for decision, partition in wanted:
        content = row_bytes(decision)
        contents[decision * partitions + partition] = content
        with store.writer(object_name(owner.map_id, decision, partition)) as writer:
            writer.write(content)
            writer.close()
    for piece in pieces(owner.map_id, rows, partitions, contents):
        write_deltalake(str(folder / "tables" / ARCHIVE_SEGMENTS_TABLE), piece, mode="append")


def look_up(folder: Path, partition: int, how: dict[str, int]) -> dict[str, Any]:
    """Return what a process measured that finds one record."""
    command = [
        sys.executable,
        "-c",
        _LOOKUP,
        str(folder / "tables"),
        str(folder / "objects"),
        TOPIC,
        str(partition),
        json.dumps(how),
    ]
    begun = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    measured: dict[str, Any] = json.loads(ended.stdout)
    return measured | {"process_s": time.perf_counter() - begun}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--partitions", type=int, default=100)
    arguments.add_argument("--lookups", type=int, default=5)
    given = arguments.parse_args()
    end_on_sigterm()
    chance = random.Random(1)
    decisions = given.rows // given.partitions
    wanted = [(chance.randrange(decisions), chance.randrange(given.partitions)) for _ in range(given.lookups)]
    with tempfile.TemporaryDirectory(prefix="archive-lookup-") as name:
        folder = Path(name)
        begun = time.perf_counter()
        make_archive(folder, given.rows, given.partitions, wanted)
        made_s = time.perf_counter() - begun
        table_mb = sum(file.stat().st_size for file in (folder / "tables").rglob("*.parquet")) / 1e6
        print(
            json.dumps({"rows": given.rows, "partitions": given.partitions, "made_s": made_s, "table_mb": table_mb}), flush=True
        )
        for by in ("offset", "timestamp_ms"):
            measured = []
            for decision, partition in wanted:
                delta = chance.randrange(RECORDS_PER_ROW)
                offset = RECORDS_PER_ROW * decision + delta
                time_ms = START_MS + ROW_MS * decision + delta * ROW_MS // RECORDS_PER_ROW
                result = look_up(folder, partition, {by: offset if by == "offset" else time_ms})
                assert result["offset"] == offset, result
                measured.append(result)
            medians = {
                name: round(statistics.median(row[name] for row in measured), 3) for name in measured[0] if name != "offset"
            }
            slowest = round(max(row["process_s"] for row in measured), 3)
            print(json.dumps({"by": by, "lookups": len(measured), **medians, "slowest_process_s": slowest}), flush=True)


if __name__ == "__main__":
    main()
