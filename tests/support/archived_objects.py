"""Small archives for tests: real objects in a folder, and the Delta table that names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deltalake import DeltaTable

from shallow_mirror.archive_format.object_footer import ObjectHeader
from shallow_mirror.archive_format.object_names import ObjectName
from shallow_mirror.checkpoints.archive_schema import ARCHIVE_SEGMENTS_TABLE, SegmentState
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.schema import DecidedSegment
from shallow_mirror.checkpoints.table_layout import ARCHIVE_LAYOUT
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.sinks.archive.object_builder import ObjectBuilder
from shallow_mirror.sinks.batch_parts import ReadPart
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire.batches.batch_index import index_batches

ORDERS = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
OTHER = ORDERS._replace(partition=1)
RECREATED = ORDERS._replace(topic_id="srcsrcsrcsrcsrcsrcsrcC")
"""The topic of ORDERS, deleted and created again."""
PAYMENTS = SourcePartition("payments", "srcsrcsrcsrcsrcsrcsrcB", 0)
NOW_MS = 1_790_000_000_000


class RecordingStore(ObjectStore):
    """A folder that records which ranges of which object were read."""

    reads: list[tuple[str, int, int]]

    @classmethod
    def at(cls, folder: Path) -> RecordingStore:
        store = ObjectStore.open(str(folder))
        recording = cls(store.root, store._backend, {})
        recording.reads = []
        return recording

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]], max_concurrency: int = 8) -> tuple[bytes, ...]:
        self.reads += [(name, start, size) for start, size in ranges]
        return super().read_ranges(name, ranges, max_concurrency)


class SmallArchive:
    """An archive below `folder`: `objects` and `tables`."""

    def __init__(self, folder: Path) -> None:
        self.objects = folder / "objects"
        self.tables = folder / "tables"
        self.rows: list[DecidedSegment] = []
        self._owner: OffsetMapOwner | None = None
        self._decision = 0

    @property
    def store(self) -> RecordingStore:
        return RecordingStore.at(self.objects)

    def add_object(
        self,
        responses: Sequence[Mapping[SourcePartition, bytes]],
        *,
        starts: Mapping[SourcePartition, int] | None = None,
        ends: Mapping[SourcePartition, int] | None = None,
        aborted: Mapping[SourcePartition, Sequence[tuple[int, int]]] | None = None,
    ) -> list[DecidedSegment]:
        """Write one object as a task does, and return its rows. `starts`, `ends`: of rows, where they are not their batches'."""
        self._decision += 1
        name = str(
            ObjectName(archive_id="backup", run_epoch=1, decision=self._decision, slot=0, retention_class=0, try_id="0123abcd")
        )
        builder = ObjectBuilder(name, ObjectStore.open(str(self.objects)).writer(name), "")
        positions = dict(starts or {})
        segments: dict[SourcePartition, Segment] = {}
        for response in responses:
            for source, data in response.items():
                records = memoryview(bytearray(data))
                index = index_batches(records)
                assert index.consumed_bytes == len(records)
                position = positions.setdefault(source, int(index.headers["base_offset"][0]))
                part = ReadPart(source, 1 << 62, index, records, tuple((aborted or {}).get(source, ())))
                builder.add(part, 0, len(index), position)
                before = segments.get(source)
                positions[source] = int(index.last_offset[-1]) + 1
                start = position if before is None else before.source_start
                end = (ends or {}).get(source, positions[source])
                segments[source] = Segment(
                    source=source,
                    source_start=start,
                    source_end=end,
                    kind=SegmentKind.DATA,
                    target=TargetPartition(*source),
                    target_start=start,
                    target_end=end,
                    record_count=int(index.headers["records_count"].sum()) + (before.record_count if before else 0),
                    batch_count=len(index) + (before.batch_count if before else 0),
                    size_bytes=len(records) + (before.size_bytes if before else 0),
                    max_timestamp_ms=max(int(index.headers["max_timestamp"].max()), (before and before.max_timestamp_ms) or 0),
                    source_leader_epoch=int(index.headers["partition_leader_epoch"][-1]),
                )
        header = ObjectHeader(archive_id="backup", source_cluster_id="cluster", run_epoch=1, decision=self._decision, slot=0)
        stored = builder.close(header, list(segments.values()))
        rows = [DecidedSegment(segment, None, stored[source]) for source, segment in segments.items()]
        self.decide(rows)
        return rows

    def add_gap(self, source: SourcePartition, start: int, end: int, kind: SegmentKind = SegmentKind.GAP) -> None:
        segment = Segment(source=source, source_start=start, source_end=end, kind=kind, target=TargetPartition(*source))
        self.decide([DecidedSegment(segment, None)])

    def decide(self, rows: Sequence[DecidedSegment]) -> None:
        """Append rows to the table, as a decision does."""
        if self._owner is None:
            self._owner = OffsetMapOwner.take_over(
                str(self.tables),
                layout=ARCHIVE_LAYOUT,
                mirror="backup",
                source_cluster_id="cluster",
                target_cluster_id="archive",
                run=RunIdentity.of_this_process(),
                now_ms=lambda: NOW_MS,
            )
            self._owner.settle()
        self.rows += rows
        self._owner.next_decision()
        self._owner.decide(rows, highest_slot=-1)
        self._owner.settle()

    def set_state(self, source: SourcePartition, state: SegmentState) -> None:
        """Mark all rows of a partition."""
        DeltaTable(str(self.tables / ARCHIVE_SEGMENTS_TABLE)).update(
            predicate=f"source_topic = '{source.topic}' AND source_partition = {source.partition}",
            new_values={"state": state.value},
        )
