"""The slot of an archive in this process, without Spark: what `hot_path` measures beside the slot of a mirror."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from pathlib import Path

from benchmarks.baselines import Cost, measured
from benchmarks.copying import Clusters
from benchmarks.topics import log_end_offsets
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.archive.archive_slot_job import ArchiveSlotJob, archived_topic
from shallow_mirror.sinks.archive.archive_slot_target import open_archive_target
from shallow_mirror.sinks.slots.batch_sources import DirectReadingFactory, ReadingLimits
from shallow_mirror.sinks.slots.slot_task import SlotInput, fill_slot
from shallow_mirror.types import IsolationLevel, PlannedRange, SourcePartition

_FETCH_BYTES = 16 << 20
"""The default of the archive file."""

_TIMEOUT_MS = 300_000
_FILE_BYTES, _PIECE = 1 << 30, 1 << 20


class ArchiveSlot:
    """Copies a topic into one object below `folder`, as the task of a slot does."""

    def __init__(self, clusters: Clusters, topic: str, folder: Path) -> None:
        self._topic, self._folder = topic, folder
        self._config = ClientConfig.from_properties({"bootstrap.servers": clusters.source.bootstrap})
        self._source = Cluster(self._config)
        self._deadline = Deadline.after_ms(_TIMEOUT_MS, time.monotonic)
        ends = log_end_offsets(clusters.source.bootstrap, topic)
        topic_id = self._source.metadata([topic], self._deadline).topics[topic].topic_id
        self._ends = {SourcePartition(topic, topic_id, place.partition): end for place, end in ends.items()}

    def copy(self) -> tuple[int, int]:
        """Return bytes and batches."""
        positions = dict.fromkeys(self._ends, 0)
        ranges = [
            PlannedRange(slot=0, source=source, start=0, end=end, bytes_per_offset=500.0) for source, end in self._ends.items()
        ]
        limits = ReadingLimits(isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=_FETCH_BYTES, deadline=self._deadline)
        readings = DirectReadingFactory(self._source, ranges, positions, limits)
        job = self._job(positions)
        target = open_archive_target(job, 0, self._deadline)
        done = fill_slot(job, SlotInput(number=0, readings=readings, positions=positions), target, self._deadline)
        return sum(segment.size_bytes for segment in done.segments), sum(segment.batch_count for segment in done.segments)

    def remove(self) -> None:
        shutil.rmtree(self._folder)

    def _job(self, positions: dict[SourcePartition, int]) -> ArchiveSlotJob:
        return ArchiveSlotJob(
            archive_id=uuid.uuid4().hex,
            source_cluster_id="benchmark",
            objects=str(self._folder),
            storage_options={},
            object_bytes=1 << 40,
            decision=1 << 32,
            source=self._config,
            routes={self._topic: archived_topic(self._topic)},
            positions=positions,
            epoch_ends={},
            isolation=IsolationLevel.READ_COMMITTED,
            fetch_bytes=_FETCH_BYTES,
            max_segments=200_000,
            commit_interval_ms=_TIMEOUT_MS,
            time_left_ms=_TIMEOUT_MS,
        )


def file_floor(folder: Path) -> Cost:
    """Write a file and sync it, without any processing."""
    data, path = memoryview(bytearray(_PIECE)), folder / "floor"

    def write() -> tuple[int, int]:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for _ in range(_FILE_BYTES // _PIECE):
                os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return _FILE_BYTES, 1

    try:
        return measured(write)
    finally:
        path.unlink(missing_ok=True)
