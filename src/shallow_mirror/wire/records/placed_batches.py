"""Pure: what is sent of one partition's part of a Fetch response where every record keeps its offset.

Raw batches as they are, rebuilt ones where one cannot be copied, and filler batches over all offsets between them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shallow_mirror.types import BatchLimits, TopicPartition
from shallow_mirror.wire.batches.admission import Admission, Verdict
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.restamping import SharedProducer, StampedInPlace
from shallow_mirror.wire.records.fillers import Fillers
from shallow_mirror.wire.records.placed_queue import PlacedQueue, QueueBuilder
from shallow_mirror.wire.records.rebuild_in_place import PlacedBatch, rebuild_in_place
from shallow_mirror.wire.records.send_buffer import Rewritten, SentPart
from shallow_mirror.wire.records.varints import Longs

_NO_TIME_MS = -1


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The plan for one part. `queue`: batches to send, once `stamped` was restamped; `log_end`: the end of the target's log then.

    `rewritten`, by fetched batch, and `base_offsets` are the arguments of `SegmentBuilder.add`, once everything is on the target:
    the n-th of the sent batches that it knows lies at the n-th base offset, and is of the fetched batch `fetched[n]`.
    """

    queue: PlacedQueue
    stamped: Sequence[StampedInPlace]
    log_end: int
    rewritten: Mapping[int, Rewritten]
    base_offsets: Sequence[int]
    fetched: Sequence[int]

    def done_with(self, sent: int, index: BatchIndex) -> int:
        """Return how many fetched batches are done with once the first `sent` batches of the queue are on the target."""
        if sent >= len(self.queue):
            return len(index)
        return int(np.searchsorted(index.last_offset, self.queue.offset(sent)))

    def base_offsets_of(self, done: int) -> Sequence[int]:
        """Return the base offsets of the first `done` fetched batches."""
        return self.base_offsets[: bisect_left(self.fetched, done)]


def place(
    index: BatchIndex,
    records: memoryview,
    admission: Admission,
    *,
    topic_partition: TopicPartition,
    position: int,
    log_end: int,
    limits: BatchLimits,
    fillers: Fillers,
    producer: SharedProducer,
    max_opened_bytes: int,
) -> Placement:
    """Return the batches to send so that the target's log, which ends at `log_end`, holds all below `admission.next_position`.

    `position`: up to which the source was accounted for before. The caller restamps batches in place, for all partitions at
    once. Those below `log_end` are on the target, and are recorded, not sent. Raises as `rebuild_in_place`.
    """

    def rebuilt(i: int, first_offset: int) -> list[PlacedBatch]:
        start, size = int(index.pos[i]), int(index.size_bytes[i])
        return rebuild_in_place(
            records[start : start + size],
            topic_partition,
            position=first_offset,
            limits=limits,
            max_opened_bytes=max_opened_bytes,
            filler_key=fillers.key,
            cut=admission.cut,
        )

    builder = QueueBuilder(fillers, producer, log_end)
    part = _PlacedPart(index, admission, log_end, builder, rebuilt)
    part.add_all(position)
    last_time_ms = int(index.headers["max_timestamp"][-1]) if len(index) else _NO_TIME_MS
    builder.fill_up_to(admission.next_position, last_time_ms)
    queue, stamped = builder.build(records, index, part.raw_above_log_end())
    return Placement(queue, stamped, builder.log_end, part.rewritten, part.base_offsets, part.fetched)


class _PlacedPart:
    """Adds the batches of one part to a queue: whole ones by runs, and one after another those that `rebuilt` has to open."""

    def __init__(
        self,
        index: BatchIndex,
        admission: Admission,
        log_end: int,
        builder: QueueBuilder,
        rebuilt: Callable[[int, int], list[PlacedBatch]],
    ) -> None:
        """`rebuilt` returns the records of a batch, by its number, from an offset on."""
        self._index = index
        self._log_end = log_end
        self._builder = builder
        self._rebuilt = rebuilt
        self._bases, self._lasts = index.headers["base_offset"], index.last_offset
        is_raw = admission.verdicts == Verdict.RAW
        # A log ends within a batch where an earlier writer cut it, or the end that was read is old.
        self._is_cut = (self._bases < log_end) & (self._lasts >= log_end)
        self._is_raw = is_raw
        self._is_whole = is_raw & ~self._is_cut
        self._is_opened = (admission.verdicts == Verdict.REBUILD) | (is_raw & self._is_cut)
        self.rewritten: dict[int, Rewritten] = {}
        self.base_offsets: list[int] = []
        self.fetched: list[int] = []

    def add_all(self, position: int) -> None:
        opened = deque(np.flatnonzero(self._is_opened).tolist())
        for first, end in self._index.adjacent_runs(self._is_whole):
            while opened and opened[0] < first:
                self._add_opened(opened.popleft(), position)
            self._add_whole(first, end)
        for i in opened:
            self._add_opened(i, position)

    def raw_above_log_end(self) -> npt.NDArray[np.int64]:
        """Return the batches that are sent as they are."""
        return np.flatnonzero(self._is_whole & (self._bases >= self._log_end))

    def _add_whole(self, first: int, end: int) -> None:
        offsets = self._bases[first:end].tolist()
        self.base_offsets += offsets
        self.fetched += range(first, end)
        sent = bisect_left(offsets, self._log_end)
        if sent < len(offsets):
            first_time = int(self._index.headers["max_timestamp"][first + sent])
            self._builder.add_raw(offsets[sent:], int(self._lasts[end - 1]) + 1, first_time)

    def _add_opened(self, i: int, position: int) -> None:
        placed_batches: list[PlacedBatch] = []
        if self._is_raw[i]:  # only its end is sent: recorded whole and in place, as if it had been sent as one
            self.base_offsets.append(int(self._bases[i]))
        else:
            placed_batches = self._rebuilt(i, position)
            if placed_batches:
                offsets = np.concatenate([placed.source_offsets for placed in placed_batches])
                self.rewritten[i] = _in_place(offsets, self.base_offsets)
        self.fetched += [i] * (len(self.base_offsets) - len(self.fetched))
        if self._is_cut[i]:
            placed_batches = self._rebuilt(i, self._log_end)
        for placed in placed_batches:
            if placed.offset >= self._log_end:
                self._builder.add_rebuilt(placed)


def _in_place(offsets: Longs, base_offsets: list[int]) -> Rewritten:
    """Return the records of a rewritten batch: each run of adjacent ones counts as one sent batch at its own offset."""
    firsts = np.append(0, np.flatnonzero(np.diff(offsets) != 1) + 1)
    counts = np.diff(firsts, append=len(offsets)).tolist()
    parts = [SentPart(len(base_offsets) + k, 0, count) for k, count in enumerate(counts)]
    base_offsets += offsets[firsts].tolist()
    return Rewritten(offsets, parts)
