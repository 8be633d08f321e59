"""Executor: is a source log still the one that was copied so far? KIP-320.

Batches of one leader epoch were appended by one leader, one behind the other: where epochs are equal, the log continues. Where
the epoch of a batch differs from that of the batch before it, the leader is asked how far the older epoch reaches. An unclean
leader election, or a lost disk, cut it in front of the mirror's position.

Compaction may remove every batch of an epoch. A replica that was made from what is left has never heard of that epoch, and
answers with the one before it and the offset at which the next one begins. On compacted topics the rule is therefore that of
Java's consumer: no offset that was read may lie behind that beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import topic_storage
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import LogTruncatedError
from shallow_mirror.sinks.slot_values import ReadPart, UnfinishedRange
from shallow_mirror.sinks.slots.batch_sources import NO_END_LIMITS, ReadingFactory, SlotReading
from shallow_mirror.types import EpochEnd, PlannedRange, SourcePartition
from shallow_mirror.wire.batches import BatchIndex


class CheckedReadingFactory:
    """Makes readings of a source that yield nothing of another log than was copied so far. `epoch_ends` as in `SourceLogs`."""

    def __init__(
        self, readings: ReadingFactory, source: Cluster, epoch_ends: Mapping[SourcePartition, EpochEnd], deadline: Deadline
    ) -> None:
        self._readings = readings
        self._source = source
        self._known = epoch_ends
        self._deadline = deadline

    @property
    def is_repeatable(self) -> bool:
        return self._readings.is_repeatable

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        return _CheckedReading(self._readings.begin(ends, highest_ends), SourceLogs(self._source, self._known, self._deadline))


class _CheckedReading:
    def __init__(self, reading: SlotReading, logs: SourceLogs) -> None:
        self._reading, self._logs = reading, logs

    @property
    def unknown(self) -> tuple[PlannedRange, ...]:
        return self._reading.unknown

    def end_by(self, end: Deadline) -> None:
        self._reading.end_by(end)

    @property
    def has_ended_early(self) -> bool:
        return self._reading.has_ended_early

    def reached(self) -> Mapping[SourcePartition, int]:
        return self._reading.reached()

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]:
        return self._reading.unfinished()

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]:
        for parts in self._reading:
            for part in parts:
                self._logs.require_continued_by(part)
            yield parts


class SourceLogs:
    """The logs of one slot. `epoch_ends`: how far each source partition's last leader epoch was read; none: not checked."""

    def __init__(self, source: Cluster, epoch_ends: Mapping[SourcePartition, EpochEnd], deadline: Deadline) -> None:
        self._source, self._deadline = source, deadline
        self._known = dict(epoch_ends)

    def require_continued_by(self, part: ReadPart) -> None:
        """Raise LogTruncatedError if the log is another one by now, and RetriableError.

        Sends no request while leader epochs stay as they are.
        """
        before = self._known.get(part.source)
        for after in _epoch_ends(part.index):
            if before is not None and before.leader_epoch != after.leader_epoch:
                self._require(part.source, before)
            before = after
        if before is not None:
            self._known[part.source] = before

    def _require(self, source: SourcePartition, read: EpochEnd) -> None:
        topic_partition = source.topic_partition
        answer = self._source.epoch_ends({topic_partition: read.leader_epoch}, self._deadline)[topic_partition]
        if answer.leader_epoch == read.leader_epoch and answer.end >= read.end:
            return
        doubt = ""
        if answer.end >= read.end:  # the leader does not have the epoch, and the older one that it names reaches far enough
            storage = topic_storage(self._source, topic_partition.topic, self._deadline)
            if storage.is_compacted and answer.leader_epoch >= 0:
                return
            doubt = f". Whether compaction removed the epoch is not known: {storage.refusal}" if storage.refusal else ""
        divergent_offset = answer.end if 0 <= answer.end < read.end else None
        differs = (
            "at an offset that cannot be found out any more" if divergent_offset is None else f"from offset {divergent_offset} on"
        )
        raise LogTruncatedError(
            topic_partition,
            read.end,
            f"the log is not the one that was copied: up to {read.end} records of leader epoch {read.leader_epoch} were copied, "
            f"and it holds others {differs} (an unclean leader election, a lost disk). What lies before that was copied "
            f"as it is{doubt}",
            divergent_offset=divergent_offset,
            topic_id=source.topic_id,
        )


def _epoch_ends(index: BatchIndex) -> Iterator[EpochEnd]:
    """Yield how far each leader epoch reaches, in the order of batches. Message sets of before Kafka 0.11 have none."""
    epochs = index.headers["partition_leader_epoch"]
    for i in np.flatnonzero(np.append(epochs[1:] != epochs[:-1], len(epochs) > 0)).tolist():
        if epochs[i] >= 0:
            yield EpochEnd(int(epochs[i]), int(index.last_offset[i]) + 1)
