"""Archives for tests, written without brokers: real objects in a folder, and their rows in a real Delta table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from shallow_mirror.archive_format import ObjectName
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable, LedgerOwner, RunIdentity, TopicDescription
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS_TABLE, SegmentBuilder, SegmentState
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, Tables, TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.sinks import ReadPart, take_over_archive
from shallow_mirror.sinks.archive import TopicObjects
from shallow_mirror.sinks.archive.object_builder import ObjectBuilder
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire.batches import index_batches

ORDERS = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
OTHER = ORDERS._replace(partition=1)
RECREATED = ORDERS._replace(topic_id="srcsrcsrcsrcsrcsrcsrcC")
"""The topic of ORDERS, deleted and created again."""
PAYMENTS = SourcePartition("payments", "srcsrcsrcsrcsrcsrcsrcB", 0)
CLUSTER_ID = "source-cluster"
NOW_MS = 1_700_000_000_000


def archive_document(**settings: Any) -> dict[str, Any]:
    """Return an archive file of a cluster that does not answer."""
    return {
        "archive": "backup",
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "topics": {"include": [".*"]},
        "objects": "objects",
        "tables": "tables",
        **settings,
    }


def archive_config(folder: Path, **settings: Any) -> ArchiveConfig:
    return ArchiveConfig.from_document(archive_document(**settings), folder=folder)


def object_files(config: ArchiveConfig) -> list[Path]:
    """Return the files of all objects of an archive in a folder, by name."""
    return sorted(Path(config.objects).rglob("*.batches"))


def take_over(tables: Tables, archive: str, now_ms: Callable[[], int], source_cluster_id: str = CLUSTER_ID) -> LedgerOwner:
    """Return the next owner of the table, or the first one of a new table."""
    owner = LedgerOwner.take_over(
        tables,
        layout=ARCHIVE_LAYOUT,
        name=archive,
        source_cluster_id=source_cluster_id,
        target_cluster_id="archive",
        run=RunIdentity.of_this_process(),
        now_ms=now_ms,
    )
    owner.settle()
    return owner


def first_row_of_lineage(source: SourcePartition, lineage: int, offset: int, leader_epoch: int | None) -> DecidedSegment:
    """Return the row without length with which a lineage begins. `leader_epoch`: of the log in front of it."""
    segment = Segment(
        source=source,
        source_start=offset,
        source_end=offset,
        kind=SegmentKind.GAP,
        target=TargetPartition(*source),
        source_leader_epoch=leader_epoch,
        lineage=lineage,
    )
    return DecidedSegment(segment, None)


def replace_files(config: ArchiveConfig) -> None:
    """Compact the table of an archive, and delete the replaced files, as a running archive does within a day."""
    table = DeltaTable(str(Path(config.tables) / ARCHIVE_SEGMENTS_TABLE))
    assert table.optimize.compact()["numFilesRemoved"] > 1
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


class ArchiveOfTest:
    """The owner of a new archive, or the next owner of one that is there."""

    def __init__(self, config: ArchiveConfig, *, now_ms: int = NOW_MS, source_cluster_id: str = CLUSTER_ID) -> None:
        self.config, self.now_ms = config, now_ms
        self.source_cluster_id = source_cluster_id
        self.store = ObjectStore.open(config.objects, config.storage_options)
        storage = TableStorage(config.table_location)
        self.archive_owner = take_over_archive(
            storage,
            self.store,
            archive=config.archive,
            source_cluster_id=source_cluster_id,
            run=RunIdentity.of_this_process(),
            now_ms=lambda: self.now_ms,
        )
        self.owner = self.archive_owner.table
        self.owner.settle()
        self.archive_owner.complete_copies(ArchiveTable.open(storage))

    def decide(self, *rows: DecidedSegment) -> None:
        self.owner.next_decision()
        self.owner.decide(rows, highest_slot=-1)
        self.owner.settle()

    def write(
        self,
        batches: Mapping[SourcePartition, Sequence[bytes]],
        *,
        slot: int = 0,
        retention_class: int = 0,
        pattern: str = "",
        positions: Mapping[SourcePartition, int] | None = None,
        gaps: Sequence[Segment] = (),
        aborted: Mapping[SourcePartition, Sequence[tuple[int, int]]] | None = None,
    ) -> list[DecidedSegment]:
        """Write one object of the next decision, and return the rows that would decide it.

        `aborted`: as Fetch responses list them, (producer id, first offset).
        """
        version = self.owner.next_decision()
        name = ObjectName(
            archive_id=self.owner.map_id,
            run_epoch=version >> 32,
            decision=version & 0xFFFFFFFF,
            slot=slot,
            retention_class=retention_class,
            try_id=uuid.uuid4().hex[:8],
        )
        built = ObjectBuilder(name, self.store.writer(str(name)), pattern)
        segments: list[Segment] = []
        known = self.owner.positions() if positions is None else {}
        for source, of_partition in batches.items():
            records = memoryview(bytearray(b"".join(of_partition)))
            index = index_batches(records)
            start = known[source].offset if source in known else (positions or {}).get(source, 0)
            end = int(index.last_offset[-1]) + 1
            part = ReadPart(
                source=source, range_end=end, index=index, records=records, aborted=tuple((aborted or {}).get(source, ()))
            )
            built.add(part, 0, len(index), start)
            lineage = known[source].lineage if source in known else 0
            builder = SegmentBuilder(source, TargetPartition(*source), start, lineage=lineage)
            builder.add_stored(index, 0, len(index))
            segments += builder.build()
        stored = built.close(self.source_cluster_id, [*segments, *gaps])
        return [DecidedSegment(segment, None, stored.get(segment.source)) for segment in segments] + [
            DecidedSegment(segment, None) for segment in gaps
        ]

    def begin_lineage(self, source: SourcePartition, offset: int, leader_epoch: int | None = None) -> None:
        """Continue with another log from an offset on, as behind a truncation."""
        self.decide(first_row_of_lineage(source, self.owner.positions()[source].lineage + 1, offset, leader_epoch))

    def describe(self, *topics: TopicDescription) -> None:
        """Record topics beside the objects and in the table, as a run does."""
        described = ArchivedTopics.of(TableStorage(self.config.table_location))
        TopicObjects(self.store, self.owner.map_id).record(topics, at_ms=self.now_ms, history=described.seen)
        described.record(topics, run_epoch=1, micro_batch=1, at_ms=self.now_ms)

    def archive(self, batches: Mapping[SourcePartition, Sequence[bytes]], **options: Any) -> list[DecidedSegment]:
        """Write one object and decide it."""
        rows = self.write(batches, **options)
        self.owner.decide(rows, highest_slot=-1)
        self.owner.settle()
        return rows


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

    def read_into(
        self,
        name: str,
        ranges: Sequence[tuple[int, int]],
        target: memoryview,
        max_concurrency: int = 8,
        *,
        is_read_once: bool = False,
    ) -> None:
        self.reads += [(name, start, size) for start, size in ranges]
        super().read_into(name, ranges, target, max_concurrency, is_read_once=is_read_once)


class SmallArchive:
    """An archive of responses below `folder`: `objects` and `tables`, with rows as a test wants them."""

    def __init__(self, folder: Path) -> None:
        self.objects = folder / "objects"
        self.tables = folder / "tables"
        self.rows: list[DecidedSegment] = []
        self._owner: LedgerOwner | None = None
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
        name = ObjectName(archive_id="backup", run_epoch=1, decision=self._decision, slot=0, retention_class=0, try_id="0123abcd")
        builder = ObjectBuilder(name, ObjectStore.open(str(self.objects)).writer(str(name)), "")
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
        stored = builder.close(CLUSTER_ID, list(segments.values()))
        rows = [DecidedSegment(segment, None, stored[source]) for source, segment in segments.items()]
        self.decide(rows)
        return rows

    def add_gap(self, source: SourcePartition, start: int, end: int, kind: SegmentKind = SegmentKind.GAP) -> None:
        segment = Segment(source=source, source_start=start, source_end=end, kind=kind, target=TargetPartition(*source))
        self.decide([DecidedSegment(segment, None)])

    def decide(self, rows: Sequence[DecidedSegment]) -> None:
        """Append rows to the table, as a decision does."""
        if self._owner is None:
            self._owner = take_over(str(self.tables), "backup", lambda: NOW_MS)
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
