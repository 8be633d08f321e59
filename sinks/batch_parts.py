"""Executor: whole batches of one source partition: as they were read, and as they were admitted."""

from __future__ import annotations

from dataclasses import dataclass

from shallow_mirror.checkpoints.quarantine.batches import QuarantinedBatch
from shallow_mirror.types import SourcePartition
from shallow_mirror.wire.batches.admission import Admission
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.records.send_buffer import Outgoing


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Whole batches of one source partition. `records` is writable. It stays valid while as many further responses
    are read as the job has in flight.

    Of batches that begin below `start` the records below it are not wanted; a position above it counts anyway. `is_cut`: nor are
    the records from `range_end` on; otherwise a batch that straddles it is wanted whole. `fills_log`: without a batch as well, a
    log with preserved offsets is filled up to the position.
    """

    source: SourcePartition
    range_end: int
    index: BatchIndex
    records: memoryview
    aborted: tuple[tuple[int, int], ...]
    start: int = 0
    is_cut: bool = False
    fills_log: bool = False

    def batch(self, i: int) -> memoryview:
        start = int(self.index.pos[i])
        return self.records[start : start + int(self.index.size_bytes[i])]


@dataclass(frozen=True, slots=True)
class AdmittedPart:
    """One partition's part of a response, what becomes of its batches, what is sent of it, and copies of what is quarantined."""

    part: ReadPart
    admission: Admission
    outgoing: Outgoing
    quarantined: tuple[QuarantinedBatch, ...] = ()

    def done_with(self, sent: int) -> int:
        """Return how many fetched batches are done with once the first `sent` batches of `outgoing` are on the target.

        All in front of the first one that has yet to be sent: dropped and quarantined ones need no sending. `sent` has to be
        where no source batch was sent in part.
        """
        return int(self.outgoing.firsts[sent]) if sent < len(self.outgoing) else len(self.part.index)
