"""Runs, rows and faults for tests of the offset map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.tables import TableWriter
from shallow_mirror.checkpoints.tables.table_protocol import Conditions, DeltaCommitError, TableSnapshot, Update
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

SOURCE = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
TARGET = TargetPartition("orders", "tgttgttgttgttgttgttgtA", 0)
TXN = SlotTxn("m-0", 1000, 3)
NEWER = SlotTxn("m-0", 1000, 4)


def run_of(name: str) -> RunIdentity:
    return RunIdentity(run_id=name, host="host", pid=7, started_at_ms=1_700_000_000_000)


def data(start: int, end: int, txn: SlotTxn | None = TXN) -> DecidedSegment:
    return DecidedSegment(
        Segment(
            source=SOURCE, source_start=start, source_end=end, kind=SegmentKind.DATA, target=TARGET,
            target_start=start + 100, target_end=end + 100, record_count=end - start, batch_count=1,
        ),
        txn,
    )  # fmt: skip


class Faulty:
    """A writer that calls `fault` before and after each commit; what it raises is what the library would have raised."""

    def __init__(self, writer: TableWriter, fault: Callable[[str], None] = lambda _: None) -> None:
        self._writer, self.fault, self.name = writer, fault, writer.name

    def create(self, properties: Mapping[str, str]) -> None:
        self._writer.create(properties)

    def snapshot(self) -> TableSnapshot | None:
        return self._writer.snapshot()

    def reread(self, snapshot: Any) -> TableSnapshot:
        return self._writer.reread(snapshot)

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        self.fault("before append")
        self._writer.append(snapshot, rows, version, metadata)
        self.fault("after append")

    def delete(self, snapshot: Any, conditions: Conditions, version: int, metadata: Mapping[str, str]) -> None:
        self.fault("before delete")
        self._writer.delete(snapshot, conditions, version, metadata)
        self.fault("after delete")

    def update(self, snapshot: Any, update: Update, version: int, metadata: Mapping[str, str]) -> None:
        self.fault("before update")
        self._writer.update(snapshot, update, version, metadata)
        self.fault("after update")

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        self.fault("before compact")
        self._writer.compact(snapshot, metadata)

    def clean_up(self) -> None:
        self._writer.clean_up()

    def repair_log(self) -> None:
        self._writer.repair_log()


def once(when: str, act: Callable[[], object]) -> Callable[[str], None]:
    pending = [when]

    def fault(now: str) -> None:
        if pending and now == pending[0]:
            pending.clear()
            act()

    return fault


def lose() -> None:
    raise DeltaCommitError("the reply was lost")
