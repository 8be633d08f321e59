"""What a slot of a restore reads: the ranges of the slot that a row of Spark's numbers."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from tests.support.archives import ORDERS, OTHER, SmallArchive
from tests.support.record_batches import batch

from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.slots.archive_readings import ArchiveInput
from shallow_mirror.types import PlannedRange, SourcePartition


def test_a_slot_reads_its_own_ranges_and_leaves_out_what_cannot_be_written(tmp_path: Path) -> None:
    archive = SmallArchive(tmp_path)
    rows = archive.add_object([{ORDERS: batch(0, 5), OTHER: batch(0, 3)}])
    planned = {
        ORDERS: PlannedRange(slot=0, source=ORDERS, start=0, end=5, bytes_per_offset=1.0),
        OTHER: PlannedRange(slot=3, source=OTHER, start=0, end=3, bytes_per_offset=1.0),
    }
    archive_input = ArchiveInput(
        objects=str(archive.objects),
        storage_options={},
        segments={row.segment.source: [row] for row in rows},
        slots=[(planned[ORDERS],), (planned[OTHER],)],
    )
    on_executor: ArchiveInput = pickle.loads(pickle.dumps(archive_input))

    def read(index: int, left_out: frozenset[SourcePartition] = frozenset()) -> tuple[int, dict[SourcePartition, bytes]]:
        job: Any = SimpleNamespace(left_out=left_out, positions=dict.fromkeys(planned, 0), fetch_bytes=1 << 20)
        slot = on_executor(job, iter([pa.record_batch({"id": [index]})]), False, Deadline.after_ms(10_000, time.monotonic))
        parts = [part for response in slot.readings.begin(None) for part in response]
        assert slot.positions.keys() == {part.source for part in parts}
        return slot.number, {part.source: bytes(part.records) for part in parts}

    assert read(0) == (0, {ORDERS: batch(0, 5)})
    assert read(1) == (3, {OTHER: batch(0, 3)})
    assert read(1, frozenset([OTHER])) == (3, {})
