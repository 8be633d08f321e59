"""Executor: target of a slot of an archive: objects of its own for every try, one per retention class."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from shallow_mirror.archive_format import ObjectName, StoredBatches
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.sinks.archive.archive_slot_job import ArchiveSlotJob
from shallow_mirror.sinks.archive.object_builder import ObjectBuilder
from shallow_mirror.sinks.slot_values import ReadPart, SlotWrite
from shallow_mirror.types import Segment, SourcePartition

_PAUSES_S = (0.1, 0.5, 2.0)
_OVERRUN = 1.5
"""Plans are estimates of bytes: a slot that ended at `object_bytes` exactly would leave small objects for another round."""
_DECISION_MASK = (1 << 32) - 1


class ArchiveSlotTarget:
    """The object store of one slot (a `SlotTarget`). Objects of a try that is given up are named by no row."""

    def __init__(self, job: ArchiveSlotJob, number: int, store: ObjectStore, deadline: Deadline) -> None:
        self._job = job
        self._number = number
        self._store = store
        self._deadline = deadline
        self._writer: ArchiveSlotWriter | None = None

    def begin(self) -> ArchiveSlotWriter:
        self.abandon()
        self._writer = ArchiveSlotWriter(self._job, self._number, self._store, self._deadline)
        return self._writer

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abort()
            self._writer = None

    def unavailable(self, _sources: Iterable[SourcePartition]) -> Mapping[SourcePartition, RetriableError]:
        """Return nothing: a store is there for all partitions or for none."""
        return {}

    def clean_up(self, sources: Iterable[SourcePartition]) -> None:
        """Do nothing: an object that no row names is not read."""

    def pause(self, tries: int, deadline: Deadline) -> None:
        time.sleep(min(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)], deadline.remaining_ms() / 1000))


class ArchiveSlotWriter:
    """One try of a slot (a `SlotWriter`): all batches as they were fetched, markers and data of aborted transactions too."""

    def __init__(self, job: ArchiveSlotJob, number: int, store: ObjectStore, deadline: Deadline) -> None:
        self._job = job
        self._number = number
        self._store = store
        self._deadline = deadline
        self._try_id = uuid.uuid4().hex[:8]
        self._objects: dict[int, ObjectBuilder] = {}
        self._retention_class_of: dict[str, int] = {}
        self._until: Deadline | None = None
        self._size_bytes = 0

    @property
    def is_due(self) -> bool:
        is_full = self._size_bytes >= self._job.object_bytes * _OVERRUN
        return is_full or (self._until is not None and self._until.is_over())

    @property
    def until(self) -> Deadline | None:
        return self._until

    def expect(self, sources: Iterable[SourcePartition]) -> None:
        """Do nothing: an object begins with its first batch."""

    def write(
        self, parts: Sequence[ReadPart], builder_of: Callable[[SourcePartition], SegmentBuilder]
    ) -> Sequence[QuarantinedBatch]:
        """Add the batches of a response that lie in [position, end of the range). Nothing is quarantined."""
        for part in parts:
            builder = builder_of(part.source)
            first = int(np.searchsorted(part.index.last_offset, max(builder.position, part.start)))
            end = int(np.searchsorted(part.index.headers["base_offset"], part.range_end))
            if first >= end:
                continue
            if self._until is None:
                self._until = self._deadline.sooner(self._job.commit_interval_ms)
            self._object_of(part.source.topic).add(part, first, end, builder.position)
            self._size_bytes += int(part.index.size_bytes[first:end].sum())
            builder.add_stored(part.index, first, end)
        self._job.observer("task.produced")
        return ()

    def finish(self, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> Sequence[QuarantinedBatch]:
        """Do nothing: a response is copied, and recorded, when it is written."""
        return ()

    def close(self, segments: Sequence[Segment], *, is_partial: bool) -> SlotWrite:
        """Complete the objects. Rows without batches are repeated in the footer of the first one."""
        with_batches = frozenset[SourcePartition]().union(*(built.sources for built in self._objects.values()))
        without = [segment for segment in segments if segment.source not in with_batches]
        stored: dict[SourcePartition, StoredBatches] = {}
        for built in self._objects.values():
            own = [segment for segment in segments if segment.source in built.sources]
            stored |= built.close(self._job.source_cluster_id, own + without)
            without = []
        self._objects = {}
        self._job.observer("task.stored")
        return SlotWrite(txn=None, fetched_bytes=self._size_bytes, stored=stored)

    def abort(self) -> None:
        """Give up the objects that are not complete."""
        for built in self._objects.values():
            built.abort()
        self._objects = {}

    def _object_of(self, topic: str) -> ObjectBuilder:
        if topic not in self._retention_class_of:
            self._retention_class_of[topic] = self._job.retention_class_of(topic)
        number = self._retention_class_of[topic]
        if number not in self._objects:
            name = ObjectName(
                archive_id=self._job.archive_id,
                run_epoch=self._job.decision >> 32,
                decision=self._job.decision & _DECISION_MASK,
                slot=self._number,
                retention_class=number,
                try_id=self._try_id,
            )
            self._objects[number] = ObjectBuilder(name, self._store.writer(str(name)), self._job.pattern_of(number))
        return self._objects[number]


def open_archive_target(job: ArchiveSlotJob, number: int, deadline: Deadline) -> ArchiveSlotTarget:
    """Return the object store of a slot."""
    return ArchiveSlotTarget(job, number, ObjectStore.open(job.objects, job.storage_options), deadline)
