"""Archives for tests, written without brokers: real objects in a folder, and their rows in a real Delta table."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shallow_mirror.archive_format.object_footer import ObjectHeader
from shallow_mirror.archive_format.object_names import ObjectName
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.schema import DecidedSegment
from shallow_mirror.checkpoints.segments import SegmentBuilder
from shallow_mirror.checkpoints.table_layout import ARCHIVE_LAYOUT
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.object_store.object_store import ObjectStore
from shallow_mirror.sinks.archive.object_builder import ObjectBuilder
from shallow_mirror.sinks.batch_parts import ReadPart
from shallow_mirror.types import Segment, SourcePartition, TargetPartition
from shallow_mirror.wire.batches.batch_index import index_batches

ORDERS = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
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


class ArchiveOfTest:
    """The owner of a new archive, or the next owner of one that is there."""

    def __init__(self, config: ArchiveConfig, *, now_ms: int = NOW_MS) -> None:
        self.config, self.now_ms = config, now_ms
        self.owner = OffsetMapOwner.take_over(
            config.table_location,
            layout=ARCHIVE_LAYOUT,
            mirror=config.archive,
            source_cluster_id=CLUSTER_ID,
            target_cluster_id="archive",
            run=RunIdentity.of_this_process(),
            now_ms=lambda: self.now_ms,
        )
        self.owner.settle()
        self.store = ObjectStore.open(config.objects, config.storage_options)

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
    ) -> list[DecidedSegment]:
        """Write one object of the next decision, and return the rows that would decide it."""
        version = self.owner.next_decision()
        name = ObjectName(
            archive_id=self.owner.map_id,
            run_epoch=version >> 32,
            decision=version & 0xFFFFFFFF,
            slot=slot,
            retention_class=retention_class,
            try_id=uuid.uuid4().hex[:8],
        )
        built = ObjectBuilder(str(name), self.store.writer(str(name)), pattern)
        segments: list[Segment] = []
        known = self.owner.positions() if positions is None else {}
        for source, of_partition in batches.items():
            records = memoryview(bytearray(b"".join(of_partition)))
            index = index_batches(records)
            start = known[source].offset if source in known else (positions or {}).get(source, 0)
            end = int(index.last_offset[-1]) + 1
            part = ReadPart(source=source, range_end=end, index=index, records=records, aborted=())
            built.add(part, 0, len(index), start)
            builder = SegmentBuilder(source, TargetPartition(*source), start)
            builder.add_stored(index, 0, len(index))
            segments += builder.build()
        header = ObjectHeader(
            archive_id=name.archive_id,
            source_cluster_id=CLUSTER_ID,
            run_epoch=name.run_epoch,
            decision=name.decision,
            slot=slot,
        )
        stored = built.close(header, [*segments, *gaps])
        return [DecidedSegment(segment, None, stored.get(segment.source)) for segment in segments] + [
            DecidedSegment(segment, None) for segment in gaps
        ]

    def archive(self, batches: Mapping[SourcePartition, Sequence[bytes]], **options: Any) -> list[DecidedSegment]:
        """Write one object and decide it."""
        rows = self.write(batches, **options)
        self.owner.decide(rows, highest_slot=-1)
        self.owner.settle()
        return rows
