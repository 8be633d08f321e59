"""Small and large runs of batches of several partitions, in one object."""

from __future__ import annotations

import itertools
from pathlib import Path

import crc32c
import pytest
from tests.support.record_batches import batch

from shallow_mirror.archive_format import ObjectName
from shallow_mirror.object_store.folder_store import FolderStore
from shallow_mirror.sinks import ReadPart
from shallow_mirror.sinks.archive import object_builder
from shallow_mirror.sinks.archive.object_builder import ObjectBuilder
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire.batches import index_batches

ORDERS = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
OTHER = ORDERS._replace(partition=1)
NAME = ObjectName(archive_id="a", run_epoch=1, decision=1, slot=0, retention_class=0, try_id="00000000")


def add(builder: ObjectBuilder, source: SourcePartition, data: bytes) -> None:
    """Add batches out of a receive buffer that is used again afterwards."""
    received = bytearray(data)
    part = ReadPart(source, 1 << 60, index_batches(memoryview(received)), memoryview(received), ())
    builder.add(part, 0, len(part.index), int(part.index.headers["base_offset"][0]))
    received[:] = bytes(len(received))


def segment_of(source: SourcePartition, count: int, size_bytes: int) -> Segment:
    """Return the row of `count` batches with a record each."""
    return Segment(
        source=source,
        source_start=0,
        source_end=count,
        kind=SegmentKind.DATA,
        target=TargetPartition(*source),
        target_start=0,
        target_end=count,
        size_bytes=size_bytes,
        batch_count=count,
        record_count=count,
        max_timestamp_ms=1_000,
        source_leader_epoch=3,
    )


@pytest.mark.parametrize("sizes", [(1,), (8,), (1, 1, 8, 1, 8, 8, 1, 1), (2, 2, 2, 2, 2, 2, 2, 2, 2), (1, 3, 9, 2, 30)])
def test_the_batches_of_a_partition_lie_in_the_object_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    unit = len(batch(0, payload=bytes(100)))
    monkeypatch.setattr(object_builder, "INDEX_BYTES", 3 * unit)
    monkeypatch.setattr(object_builder, "PART_BYTES", 5 * unit)
    builder = ObjectBuilder(NAME, FolderStore(tmp_path).writer(str(NAME)), "")
    expected = {ORDERS: b"", OTHER: b""}
    offsets = {source: itertools.count() for source in expected}
    for number, size in enumerate((*sizes, *reversed(sizes))):
        source = (ORDERS, OTHER)[number % 2]
        data = b"".join(batch(next(offsets[source]), payload=bytes([number % 256]) * 100) for _ in range(size))
        add(builder, source, data)
        expected[source] += data
    stored = builder.close(
        "c", [segment_of(source, next(offsets[source]), len(data)) for source, data in expected.items() if data]
    )
    content = (tmp_path / str(NAME)).read_bytes()
    for source, data in expected.items():
        if not data:
            continue
        runs = [content[entry.position : entry.position + entry.size_bytes] for entry in stored[source].index]
        assert b"".join(runs) == data
        assert stored[source].crc32c == crc32c.crc32c(data)
        assert stored[source].run_crc32c == tuple(map(crc32c.crc32c, runs))
        starts = [entry.start_offset for entry in stored[source].index]
        assert starts == sorted(set(starts))
