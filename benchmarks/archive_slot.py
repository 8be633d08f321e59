"""The slot of an archive in this process, without Spark: what `hot_path` measures beside the slot of a mirror."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from benchmarks.copying import Clusters
from benchmarks.slot_source import FETCH_BYTES, TIMEOUT_MS, SlotSource, copied
from shallow_mirror.archive_format import ArchivedSegment
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.sinks import ArchiveSlotJob
from shallow_mirror.sinks.archive.archive_slot_job import archived_topic
from shallow_mirror.sinks.archive.archive_slot_target import open_archive_target
from shallow_mirror.sinks.slots import SlotInput, fill_slot
from shallow_mirror.sinks.slots.archive_readings import ArchiveReadingFactory
from shallow_mirror.types import IsolationLevel


class ArchiveSlot:
    """Copies a topic into one object below `folder`, as the task of a slot does."""

    def __init__(self, clusters: Clusters, topic: str, folder: Path) -> None:
        self._folder = folder
        self._source = SlotSource(clusters.source.bootstrap, topic)
        self._rows: list[ArchivedSegment] = []

    def copy(self) -> tuple[int, int]:
        """Return bytes and batches."""
        deadline, job = self._source.deadline, self._job()
        done = fill_slot(job, self._source.slot_input(job), open_archive_target(job, 0, deadline), deadline)
        self._rows = [ArchivedSegment(segment, (done.stored or {})[segment.source]) for segment in done.segments]
        return copied(done)

    def slot_input(self) -> SlotInput:
        """Return what a restore reads, once the topic was copied. The page cache has nothing of it, as of an old archive."""
        for path in self._folder.rglob("*.batches"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        ranges = self._source.ranges()
        segments = {row.segment.source: [row] for row in self._rows}
        store, positions = ObjectStore.open(str(self._folder)), self._source.positions
        readings = ArchiveReadingFactory(store, ranges, positions, segments, read_ahead_bytes=FETCH_BYTES)
        return SlotInput(number=0, readings=readings, positions=positions)

    def remove(self) -> None:
        shutil.rmtree(self._folder)

    def _job(self) -> ArchiveSlotJob:
        return ArchiveSlotJob(
            archive_id=uuid.uuid4().hex,
            source_cluster_id="benchmark",
            objects=str(self._folder),
            storage_options={},
            object_bytes=1 << 40,
            decision=1 << 32,
            source=self._source.config,
            routes={self._source.topic: archived_topic(self._source.topic)},
            positions=self._source.positions,
            epoch_ends={},
            isolation=IsolationLevel.READ_COMMITTED,
            fetch_bytes=FETCH_BYTES,
            max_segments=200_000,
            commit_interval_ms=TIMEOUT_MS,
            time_left_ms=TIMEOUT_MS,
        )
