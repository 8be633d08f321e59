"""Test support: tables of a mirror as `status` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.config import MirrorConfig
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

A, B = SourcePartition("orders", "idA", 0), SourcePartition("orders", "idA", 1)

RUN = RunIdentity(run_id="r", host="elsewhere", pid=7, started_at_ms=1_000)

NOW_MS = 50_000


def config(folder: Path, **groups: Any) -> MirrorConfig:
    document = {
        "mirror": "m",
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": 50}},
        "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2", "request.timeout.ms": 50}},
        "topics": {"include": ["orders"]},
        "tables": "tables",
    }
    return MirrorConfig.from_document(document | groups, folder=folder)


def segment(source: SourcePartition, start: int, end: int, at_ms: int | None, kind: SegmentKind = SegmentKind.DATA) -> Any:
    is_data = kind is SegmentKind.DATA
    segment = Segment(
        source=source,
        source_start=start,
        source_end=end,
        kind=kind,
        target=TargetPartition(source.topic, "idT", source.partition),
        target_start=start if is_data else None,
        target_end=end if is_data else None,
        record_count=end - start if is_data else 0,
        batch_count=1,
        max_timestamp_ms=at_ms,
    )
    return DecidedSegment(segment, SlotTxn("m-0", 1, 1))


def take_over(tables: str, run: RunIdentity = RUN, source_cluster_id: str = "S") -> LedgerOwner:
    owner = LedgerOwner.take_over(
        tables, name="m", source_cluster_id=source_cluster_id, target_cluster_id="T", run=run, now_ms=lambda: NOW_MS
    )
    owner.settle()
    return owner


def decide(owner: LedgerOwner, *rows: DecidedSegment) -> None:
    owner.next_decision()
    owner.decide(rows, highest_slot=0)
    owner.settle()
