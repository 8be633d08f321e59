"""Writer of a random archive: decisions of several slots and retention classes, tries that nothing names, and new owners."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.random_archives.source_logs import LogBatch, TxnKey
from tests.support.archives import CLUSTER_ID, archive_config, first_row_of_lineage

from shallow_mirror.archive_format import ObjectName
from shallow_mirror.checkpoints import DecidedSegment, first_rows_at
from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable, RunIdentity, TopicDescription
from shallow_mirror.checkpoints.logs import GroupPosition, GroupSyncPass, changed_positions, record_pass
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.sinks import ReadPart, take_over_archive
from shallow_mirror.sinks.archive import TopicObjects
from shallow_mirror.sinks.archive.object_builder import ObjectBuilder
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire.batches import index_batches


@dataclass(frozen=True, slots=True)
class Response:
    """What one Fetch response has of a partition: batches, and (producer id, first offset) of aborted transactions."""

    source: SourcePartition
    batches: Sequence[LogBatch]
    aborted: Sequence[TxnKey]


@dataclass(frozen=True, slots=True)
class CapturedRange:
    """[start, end) of a partition in one decision. `expired_end`: behind the offsets that had expired at the source."""

    source: SourcePartition
    start: int
    end: int
    lineage: int
    expired_end: int
    responses: Sequence[Response]


class ArchiveWriter:
    """The capture of one archive below `folder`."""

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        now_ms: Callable[[], int],
        retention: Mapping[str, Mapping[str, Any]],
        **settings: Any,
    ) -> None:
        """Take over a new archive. `settings`: more groups of its file."""
        self.config = archive_config(folder, retention=dict(retention), **settings)
        self._chance, self._now_ms = chance, now_ms
        self.store = ObjectStore.open(self.config.objects, self.config.storage_options)
        self._classes = {pattern: number for number, pattern in enumerate(retention, 1)}
        self.orphans: set[str] = set()
        """Objects that nothing names."""
        self.decided: set[str] = set()
        self._noted: dict[tuple[str, SourcePartition], GroupPosition] = {}
        self.restart()

    def close(self) -> None:
        """Release what the writer holds. What is archived stays."""

    def restart(self) -> None:
        """Take over the table, as the next run does."""
        storage = TableStorage(self.config.table_location)
        owner = take_over_archive(
            storage,
            self.store,
            archive=self.config.archive,
            source_cluster_id=CLUSTER_ID,
            run=RunIdentity.of_this_process(),
            now_ms=self._now_ms,
        )
        self.owner = owner.table
        self.owner.settle()
        owner.complete_copies(ArchiveTable.open(storage))

    @property
    def decision(self) -> int:
        """Return the number of the newest decision."""
        return self.owner.micro_batch

    def describe(self, topics: Sequence[TopicDescription], at_ms: int) -> None:
        """Record descriptions of topics, first beside the objects, as a running archive does."""
        TopicObjects(self.store, self.owner.map_id).record(topics, at_ms=at_ms)
        described = ArchivedTopics.of(TableStorage(self.config.table_location))
        described.record(topics, run_epoch=self.owner.run_epoch, micro_batch=self.decision, at_ms=at_ms)

    def note_groups(self, committed: Mapping[tuple[str, SourcePartition], int], at_ms: int, *, is_whole: bool) -> None:
        """Record the committed offsets of groups, of which those that changed unless `is_whole`."""
        positions = {
            (group, source): GroupPosition(group=group, source=source, offset=offset)
            for (group, source), offset in committed.items()
        }
        changed = changed_positions(self._noted, positions, is_whole=is_whole)
        done = GroupSyncPass(observed_at=datetime.fromtimestamp(at_ms / 1000, UTC), is_whole=is_whole)
        record_pass(TableStorage(self.config.table_location).best_effort_tables(), done, changed)
        self._noted = positions

    def register(self, starts: Mapping[SourcePartition, int]) -> None:
        """Decide the first rows of partitions, which have no length."""
        self._decide(first_rows_at(starts, lambda source: TargetPartition(*source)))

    def begin_lineages(self, lineages: Mapping[SourcePartition, tuple[int, int, int]]) -> None:
        """Decide the first rows of lineages. Values: number, offset, leader epoch in front of it."""
        self._decide([first_row_of_lineage(source, *begin) for source, begin in sorted(lineages.items())])

    def capture(self, slots: Sequence[Sequence[CapturedRange]]) -> None:
        """Write one decision. Some of its slots are tried several times."""
        version = self.owner.next_decision()
        rows: list[DecidedSegment] = []
        for slot, ranges in enumerate(slots):
            if self._chance.random() < 0.1:
                self._orphan(version, slot, ranges)
            of_slot = self._write_slot(version, slot, ranges)
            self.decided |= {row.stored.object_name for row in of_slot if row.stored is not None}
            rows += of_slot
        self.owner.decide(rows, highest_slot=-1)
        self.owner.settle()

    def crash(self, slots: Sequence[Sequence[CapturedRange]]) -> None:
        """Write objects of some slots of a decision that is never committed, and take over."""
        version = self.owner.next_decision()
        for slot, ranges in enumerate(slots):
            if self._chance.random() < 0.7:
                self._orphan(version, slot, ranges)
        self.restart()

    def expire(self, now_ms: int) -> None:
        """Expire what retention does not keep, by a run of its own, and take over."""
        expire(self.config, takes_over=True, now_ms=lambda: now_ms)
        self.restart()

    def _orphan(self, version: int, slot: int, ranges: Sequence[CapturedRange]) -> None:
        rows = self._write_slot(version, slot, ranges)
        self.orphans |= {row.stored.object_name for row in rows if row.stored is not None}

    def _decide(self, rows: Sequence[DecidedSegment]) -> None:
        self.owner.next_decision()
        self.owner.decide(rows, highest_slot=-1)
        self.owner.settle()

    def _write_slot(self, version: int, slot: int, ranges: Sequence[CapturedRange]) -> list[DecidedSegment]:
        """Write one try of a slot, an object for each retention class, and return its rows."""
        objects: dict[int, ObjectBuilder] = {}
        try_id = uuid.UUID(int=self._chance.getrandbits(128)).hex[:8]
        builders: dict[SourcePartition, SegmentBuilder] = {}
        expired: list[Segment] = []
        for captured in ranges:
            start = max(captured.start, captured.expired_end)
            if start > captured.start:
                expired.append(_expired(captured))
            builders[captured.source] = SegmentBuilder(
                captured.source, TargetPartition(*captured.source), start, lineage=captured.lineage
            )
        for response in self._interleaved(ranges):
            number, pattern = self._class_of(response.source.topic)
            if number not in objects:
                name = self._name(version, slot, number, try_id)
                objects[number] = ObjectBuilder(name, self.store.writer(str(name)), pattern)
            self._add(objects[number], builders[response.source], response)
        segments = list(expired)
        for captured in ranges:
            builders[captured.source].close_at(captured.end)
            segments += builders[captured.source].build()
        return _close(objects, segments)

    def _class_of(self, topic: str) -> tuple[int, str]:
        pattern = topic if topic in self._classes else ""
        return self._classes.get(topic, 0), pattern

    def _name(self, version: int, slot: int, retention_class: int, try_id: str) -> ObjectName:
        return ObjectName(
            archive_id=self.owner.map_id,
            run_epoch=version >> 32,
            decision=version & 0xFFFFFFFF,
            slot=slot,
            retention_class=retention_class,
            try_id=try_id,
        )

    def _interleaved(self, ranges: Sequence[CapturedRange]) -> list[Response]:
        """Return the responses in an order in which fetches may return them."""
        waiting = [list(captured.responses) for captured in ranges if captured.responses]
        ordered: list[Response] = []
        while waiting:
            of_partition = self._chance.choice(waiting)
            ordered.append(of_partition.pop(0))
            waiting = [responses for responses in waiting if responses]
        return ordered

    @staticmethod
    def _add(target: ObjectBuilder, builder: SegmentBuilder, response: Response) -> None:
        records = memoryview(bytearray(b"".join(batch.data for batch in response.batches)))
        index = index_batches(records)
        assert len(index) == len(response.batches)
        part = ReadPart(
            response.source, 1 << 62, index, records, tuple((key.producer_id, key.first_offset) for key in response.aborted)
        )
        target.add(part, 0, len(index), builder.position)
        builder.add_stored(index, 0, len(index))


def _close(objects: Mapping[int, ObjectBuilder], segments: Sequence[Segment]) -> list[DecidedSegment]:
    """Complete objects. Rows of partitions without batches are repeated in the footer of the first one."""
    rows: list[DecidedSegment] = []
    with_batches = frozenset[SourcePartition]().union(*(built.sources for built in objects.values()))
    without = [segment for segment in segments if segment.source not in with_batches]
    rows += [DecidedSegment(segment, None) for segment in without]
    for built in objects.values():
        own = [segment for segment in segments if segment.source in built.sources]
        stored = built.close(CLUSTER_ID, [*own, *without])
        without = []
        rows += [DecidedSegment(row, None, stored[row.source] if row.kind is SegmentKind.DATA else None) for row in own]
    return rows


def _expired(captured: CapturedRange) -> Segment:
    return Segment(
        source=captured.source,
        source_start=captured.start,
        source_end=captured.expired_end,
        kind=SegmentKind.EXPIRED,
        target=TargetPartition(*captured.source),
        lineage=captured.lineage,
    )
