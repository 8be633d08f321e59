"""Texts: what lies in a consumer group, in Spark's checkpoint, beside it, and in the log of a Delta table."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.target import Target

from shallow_mirror.broker.produce.receipts import _parse_receipt
from shallow_mirror.checkpoints.ledger import Recorded, RunIdentity
from shallow_mirror.checkpoints.tables.backends import log_durability
from shallow_mirror.errors import ConfigError, OffsetMapConflictError
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.offset_planning import Measurements, build_stream_offset, parse_stream_offset
from shallow_mirror.types import PlannedRange, SourcePartition

OFFSETS = {
    SourcePartition("orders", "AAAAAAAAAAAAAAAAAAAAAQ", 0): 12,
    SourcePartition("a.b", "AAAAAAAAAAAAAAAAAAAAAg", 11): 1 << 40,
}
RECORDED = Recorded(
    version=(3 << 32) | 4,
    run=RunIdentity(run_id="3e0b5b3c", host="here", pid=12, started_at_ms=1_700_000_000_000),
    micro_batch=7,
    unsettled_micro_batch=7,
)


def _document(data: bytes) -> Any:
    """Return what others have read for us; None where that failed."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def receipt(data: bytes) -> None:
    parsed = _parse_receipt(data.decode("utf-8", "replace"), "mirror-0")
    assert isinstance(parsed.decision, int)


def stream_offset(data: bytes) -> None:
    """Check that what was understood is written, and understood, alike."""
    offsets = parse_stream_offset(_document(data))
    assert all(offset >= 0 and partition.partition >= 0 for partition, offset in offsets.items())
    assert parse_stream_offset(build_stream_offset(offsets)) == offsets


def recorded(data: bytes) -> None:
    metadata = _document(data)
    if isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values()):
        recorded = Recorded.from_metadata(5, metadata)
        assert Recorded.from_metadata(5, recorded.metadata()) == recorded


def _written(data: bytes, folder: str, name: str) -> Path:
    path = Path(folder) / name
    path.write_bytes(data)
    return path


def note(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        state = planner_state.read_state(_written(data, folder, "_planner.json"), planner_state.PlannerState)
    assert state is None or planner_state.lag_behind(state, OFFSETS, 0) is None or state.waiting_for is None


def measured(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        measurements = planner_state.read_measurements(_written(data, folder, "_measured.json"))
    if measurements is not None:
        assert not any(
            math.isnan(bytes_per_offset) or bytes_per_offset <= 0 for bytes_per_offset in measurements.bytes_per_offset.values()
        )


def planned(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ranges = planner_state.read_planned_ranges(_written(data, folder, "_planned.json"))
    assert all(isinstance(planned_range.end, int) for planned_range in ranges)


def commit(data: bytes) -> None:
    """Read a commit file of a local table: it is complete or half-written, or an error of the target says why not."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "_delta_log").mkdir()
        path = _written(data, folder, f"_delta_log/{0:020}.json")
        log = log_durability.LocalLog(Path(folder))
        log._is_torn(path)


def _texts() -> dict[str, list[bytes]]:
    fields = {"v": 1, "producer_id": 7, "producer_epoch": 0, "decision": 12, "map": "m", "run": "r"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "note"
        offsets = {"waiting_for": None, "since_ms": None, "ends": OFFSETS}
        planner_state.write_state(path, planner_state.PlannerState(at_ms=5, **offsets))  # type: ignore[arg-type]
        written_note = path.read_bytes()
        planner_state.write_measurements(path, Measurements(bytes_per_offset=dict.fromkeys(OFFSETS, 12.5), bytes_per_s=1e6))
        written_measured = path.read_bytes()
        ranges = [PlannedRange(slot=1, source=source, start=0, end=end, bytes_per_offset=12.5) for source, end in OFFSETS.items()]
        planner_state.write_planned_ranges(path, ranges)
        written_planned = path.read_bytes()
    actions = [{"commitInfo": {"operation": "WRITE"}}, {"add": {"path": "part-0.parquet", "size": 12, "dataChange": True}}]
    return {
        "receipt": [json.dumps(fields).encode(), b"[" * 5_000],
        "stream offset": [json.dumps(build_stream_offset(OFFSETS)).encode(), b"[" * 5_000],
        "recorded": [json.dumps(RECORDED.metadata()).encode()],
        "note": [written_note, b"[" * 5_000],
        "measured": [written_measured, b"[" * 5_000],
        "planned": [written_planned, b"[" * 5_000],
        "commit": ["\n".join(json.dumps(action) for action in actions).encode(), b"[" * 5_000],
    }


_CORPUS = _texts()

TEXTS = [
    Target("receipt", _CORPUS["receipt"], receipt, (ConfigError,)),
    Target("stream offset", _CORPUS["stream offset"], stream_offset, (ValueError,)),
    Target("recorded version", _CORPUS["recorded"], recorded, (OffsetMapConflictError,)),
    Target("planner's note", _CORPUS["note"], note),
    Target("measured speeds", _CORPUS["measured"], measured),
    Target("planned ranges", _CORPUS["planned"], planned),
    Target("commit of a local table", _CORPUS["commit"], commit, (OffsetMapConflictError,)),
]
