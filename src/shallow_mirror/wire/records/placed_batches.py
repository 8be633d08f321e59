"""Pure: what is sent of one partition's part of a Fetch response where every record keeps its offset.

Raw batches as they are, rebuilt ones where one cannot be copied, and filler batches over all offsets between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, overload

import numpy as np

from shallow_mirror.types import BatchLimits, TopicPartition
from shallow_mirror.wire.batches.admission import SENT, Admission, Verdict
from shallow_mirror.wire.batches.batch_index import BatchIndex, index_batches
from shallow_mirror.wire.batches.restamp import SharedProducer, restamp_at_offsets
from shallow_mirror.wire.protocol.produce import RawBatch
from shallow_mirror.wire.records.fillers import Fillers, OffsetSpans
from shallow_mirror.wire.records.rebuild_in_place import PlacedBatch, rebuild_in_place
from shallow_mirror.wire.records.send_buffer import Rewritten, SentPart
from shallow_mirror.wire.records.varints import Longs

_NO_TIME_MS = -1


class _Hole(NamedTuple):
    """Offsets that fillers take. `timestamp_ms`: of the batch beside them."""

    spans: OffsetSpans
    timestamp_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class PlacedQueue(Sequence[RawBatch]):
    """Batches in the order of their offsets. Filler batches are made when they are taken: there may be thousands.

    `runs`: stamped batches with their offsets, or a hole.
    """

    runs: Sequence[tuple[list[int], Sequence[RawBatch]] | _Hole]
    fillers: Fillers
    producer: SharedProducer
    _starts: Sequence[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = [len(run.spans) if isinstance(run, _Hole) else len(run[0]) for run in self.runs]
        object.__setattr__(self, "_starts", np.cumsum([0, *lengths]).tolist())

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, i: int) -> RawBatch: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[RawBatch]: ...

    def __getitem__(self, i: int | slice) -> RawBatch | Sequence[RawBatch]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        run, k = self._find(i)
        if not isinstance(run, _Hole):
            return run[1][k]
        offset, count = run.spans[k]
        batch = memoryview(self.fillers.batch(count, run.timestamp_ms))
        return restamp_at_offsets(batch, index_batches(batch), np.array([offset], np.int64), self.producer)[0]

    def offset(self, i: int) -> int:
        """Return where the i-th batch has to be appended."""
        run, k = self._find(i)
        return run.spans[k][0] if isinstance(run, _Hole) else run[0][k]

    def first_misplaced(self, base_offsets: Sequence[int]) -> int | None:
        """Return the first of the batches that was appended at another offset than its own; None: all are in place."""
        for run, start in zip(self.runs, self._starts, strict=False):
            appended = list(base_offsets[start : start + (len(run.spans) if isinstance(run, _Hole) else len(run[0]))])
            wanted = [offset for offset, _ in run.spans[: len(appended)]] if isinstance(run, _Hole) else run[0][: len(appended)]
            if appended != wanted:
                return start + next(i for i, pair in enumerate(zip(appended, wanted, strict=True)) if pair[0] != pair[1])
        return None

    def without_first(self) -> PlacedQueue:
        """Return the same queue without its first batch."""
        first, *runs = self.runs
        if isinstance(first, _Hole):
            shorter: tuple[list[int], Sequence[RawBatch]] | _Hole = first._replace(
                spans=replace(first.spans, start=min(first.spans.start + first.spans.most, first.spans.end))
            )
        else:
            shorter = first[0][1:], first[1][1:]
        return PlacedQueue([shorter, *runs], self.fillers, self.producer)

    def _find(self, i: int) -> tuple[tuple[list[int], Sequence[RawBatch]] | _Hole, int]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        number = bisect_right(self._starts, i) - 1
        return self.runs[number], i - self._starts[number]


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """What becomes of one part. `queue`: what is sent; `log_end`: where the target's log ends behind it.

    `rewritten`, by fetched batch, and `base_offsets` are what `SegmentBuilder.add` takes, once everything is on the target:
    the n-th of the sent batches that it knows lies at the n-th base offset, and is of the fetched batch `fetched[n]`.
    """

    queue: PlacedQueue
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
    """Return what is to be sent so that the target's log, which ends at `log_end`, holds all below `admission.next_position`.

    `position`: up to where the source was accounted for before. Batches that are sent are restamped where they lie; what lies
    below `log_end` is on the target, and is recorded, not sent. Raises what `rebuild_in_place` raises.
    """
    builder = _QueueBuilder(index, records, fillers, producer, log_end)
    rewritten: dict[int, Rewritten] = {}
    base_offsets: list[int] = []
    fetched: list[int] = []

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

    for i, verdict in enumerate(admission.verdicts.tolist()):
        if verdict not in SENT:
            continue
        base = builder.bases[i]
        # A log ends within a batch where an earlier writer cut it, or the end that was read is old.
        is_cut_by_log_end = base < log_end < builder.ends[i]
        placed_batches: list[PlacedBatch] = []
        if verdict == Verdict.RAW:
            base_offsets.append(base)  # also where only its end is sent: whole and in place, as if it had been sent as one
            if base >= log_end:
                builder.add_raw(i)
        else:
            placed_batches = rebuilt(i, position)
            if placed_batches:
                rewritten[i] = _in_place(np.concatenate([placed.source_offsets for placed in placed_batches]), base_offsets)
        fetched += [i] * (len(base_offsets) - len(fetched))
        if is_cut_by_log_end:
            placed_batches = rebuilt(i, log_end)
        for placed in placed_batches:
            if placed.offset >= log_end:
                builder.add_rebuilt(placed)
    builder.fill_up_to(admission.next_position, _last_time(index))
    return Placement(builder.queue(), builder.log_end, rewritten, base_offsets, fetched)


def _in_place(offsets: Longs, base_offsets: list[int]) -> Rewritten:
    """Return the records of a rewritten batch: each run of adjacent ones counts as one sent batch at its own offset."""
    firsts = np.append(0, np.flatnonzero(np.diff(offsets) != 1) + 1)
    counts = np.diff(firsts, append=len(offsets)).tolist()
    parts = [SentPart(len(base_offsets) + k, 0, count) for k, count in enumerate(counts)]
    base_offsets += offsets[firsts].tolist()
    return Rewritten(offsets, parts)


def _last_time(index: BatchIndex) -> int:
    return int(index.headers["max_timestamp"][-1]) if len(index) else _NO_TIME_MS


class _QueueBuilder:
    """Collects what is sent, in the order of offsets, with holes between."""

    def __init__(self, index: BatchIndex, records: memoryview, fillers: Fillers, producer: SharedProducer, log_end: int) -> None:
        self._index = index
        self._records = records
        self.bases = index.headers["base_offset"].tolist()
        self.ends = (index.last_offset + 1).tolist()
        self._times = index.headers["max_timestamp"].tolist()
        self._fillers = fillers
        self._producer = producer
        self._runs: list[tuple[list[int], Sequence[RawBatch]] | _Hole] = []
        self._raw: list[int] = []
        self.log_end = log_end

    def add_raw(self, i: int) -> None:
        self.fill_up_to(self.bases[i], self._times[i])
        self._raw.append(i)
        self.log_end = self.ends[i]

    def add_rebuilt(self, placed: PlacedBatch) -> None:
        offset, copy = placed.offset, memoryview(bytearray(placed.batch))
        index = index_batches(copy)
        self.fill_up_to(offset, int(index.headers["max_timestamp"][0]))
        self._end_raw_run()
        self._runs.append(([offset], restamp_at_offsets(copy, index, np.array([offset], np.int64), self._producer)))
        self.log_end = placed.end

    def fill_up_to(self, offset: int, timestamp_ms: int) -> None:
        if offset > self.log_end:
            self._end_raw_run()
            self._runs.append(_Hole(OffsetSpans(self.log_end, offset, self._fillers.most_records), timestamp_ms))
            self.log_end = offset

    def queue(self) -> PlacedQueue:
        self._end_raw_run()
        return PlacedQueue(self._runs, self._fillers, self._producer)

    def _end_raw_run(self) -> None:
        if not self._raw:
            return
        index, chosen, self._raw = self._index, np.array(self._raw, np.int64), []
        part = BatchIndex(index.pos[chosen], index.size_bytes[chosen], index.headers[chosen], None, index.consumed_bytes)
        offsets = part.headers["base_offset"].astype(np.int64)
        self._runs.append((offsets.tolist(), restamp_at_offsets(self._records, part, offsets, self._producer)))
