"""What one slot reads in this process: a whole topic of the source, without Spark."""

from __future__ import annotations

import time

from benchmarks.topics import log_end_offsets
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.slots import DirectReadingFactory, ReadingLimits, SlotInput
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.types import PlannedRange, SourcePartition

FETCH_BYTES = 16 << 20
"""The default of mirror and archive files."""

TIMEOUT_MS = 300_000


class SlotSource:
    """A topic from its begin to its end, as the only slot of a micro-batch. `deadline` is that of the copy."""

    def __init__(self, bootstrap: str, topic: str, config: ClientConfig | None = None) -> None:
        """`config`: how the slot reads; None: from `bootstrap`, in plain text."""
        self.topic = topic
        self.config = ClientConfig.from_properties({"bootstrap.servers": bootstrap}) if config is None else config
        self.deadline = Deadline.after_ms(TIMEOUT_MS, time.monotonic)
        self._cluster = Cluster(self.config)
        ends = log_end_offsets(bootstrap, topic)
        topic_id = self._cluster.metadata([topic], self.deadline).topics[topic].topic_id
        self._ends = {SourcePartition(topic, topic_id, place.partition): end for place, end in ends.items()}
        self.positions = dict.fromkeys(self._ends, 0)

    def ranges(self) -> list[PlannedRange]:
        return [
            PlannedRange(slot=0, source=source, start=0, end=end, bytes_per_offset=500.0) for source, end in self._ends.items()
        ]

    def slot_input(self, job: SlotJob) -> SlotInput:
        ranges = self.ranges()
        limits = ReadingLimits.of_job(job, self.deadline)
        readings = DirectReadingFactory(self._cluster, ranges, self.positions, limits)
        return SlotInput(number=0, readings=readings, positions=self.positions)


def copied(done: SlotResult) -> tuple[int, int]:
    """Return bytes and batches."""
    return sum(segment.size_bytes for segment in done.segments), sum(segment.batch_count for segment in done.segments)
