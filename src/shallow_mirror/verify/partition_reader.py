"""Driver: one topic-partition of one cluster, read batch by batch without opening any, and without trusting any.

What a damaged batch says of where the next one begins is ignored: where its header cannot be true, reading continues
at the next offset that the map knows as the beginning of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import MAX_BATCH_BYTES, IndexedPartition, RangeReader, ReadRange
from shallow_mirror.broker.net import ReceiveBuffer
from shallow_mirror.deadline import Deadline, Silence
from shallow_mirror.errors import BatchRefusedError, CorruptBatchError, DataLossError
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, OffsetRange, TopicPartition
from shallow_mirror.verify.classify import SideFacts
from shallow_mirror.verify.map_index import BEHIND_ALL, Bools, Longs
from shallow_mirror.wire import verify_crcs
from shallow_mirror.wire.batches import Admission, BatchIndex, Verdict, admit, has_an_end

PATIENCE_MS = 120_000
"""A cluster that sends nothing for so long ends the verification, which can be continued."""

MAX_WAIT_MS = 100
"""What is read lies below the log's end, so a broker has nothing to wait for."""

CRC_REASON = "its checksum does not match its bytes"


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One partition's part of a Fetch response, or of an archived segment. Valid until the next one."""

    index: BatchIndex
    records: memoryview
    admission: Admission
    chosen: Longs
    """Indices of the batches that belong to the range."""
    is_damaged: Bools
    """Of all batches of the index; verdicts of damaged ones mean nothing."""

    @property
    def size_bytes(self) -> int:
        """Return the size of the chosen batches."""
        return int(self.index.size_bytes[self.chosen].sum())


@dataclass(frozen=True, slots=True)
class Skipped:
    """Offsets [start, end) that were not read, because the batch at `start` is damaged."""

    start: int
    end: int


@dataclass(slots=True)
class LogView:
    """The state of a log; more is known while the log is read."""

    log_start: int
    log_end: int
    is_compacted: bool
    is_preserved: bool = False
    """Of a pair of logs with the same offsets. The target's headers of old records have another maximum timestamp then."""
    damages: dict[int, str] = field(default_factory=dict)
    """Why the batch at an offset equals nothing."""
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    """Offsets [start, end) that were skipped behind a damaged batch."""
    wrong_headers: dict[tuple[int, int], str] = field(default_factory=dict)
    """Opened batches [start, end) with the right records, but a header that says otherwise."""

    def facts(self) -> SideFacts:
        return SideFacts(self.log_start, self.log_end, self.is_compacted, self.damages, self.unreadable)


class LogReader(Protocol):
    """One side of a partition: a log of a cluster, or of an archive.

    `records_until`: records from this offset on do not belong to the comparison, also of a batch that begins below it.
    `data_rows`: starts and ends, ascending; records outside of them do not belong to it either. None: all records do.
    """

    topic_partition: TopicPartition
    log: LogView
    fetch_bytes: int
    read_bytes: int
    records_until: int
    data_rows: tuple[Longs, Longs] | None

    def read(self, wanted: OffsetRange, bytes_per_offset: float, /, *, is_first: bool) -> Iterator[Chunk | Skipped]: ...


def make_chunk(
    log: LogView,
    topic_partition: TopicPartition,
    index: BatchIndex,
    records: memoryview,
    aborted: Sequence[tuple[int, int]],
    bounds: OffsetRange,
    limits: BatchLimits,
) -> Chunk:
    """Return the batches that begin within `bounds`, and note damaged ones in `log`."""
    base = index.headers["base_offset"]
    chosen = np.flatnonzero((base >= bounds.start) & (base < bounds.end))
    admission = admit(
        index, records, topic_partition=topic_partition, position=0, range_end=bounds.end, aborted=aborted, limits=limits
    )
    return Chunk(index, records, admission, chosen, damaged_batches(log, index, records, admission))


def damaged_batches(log: LogView, index: BatchIndex, records: memoryview, admission: Admission) -> Bools:
    """Return which batches equal nothing, and note in `log` why."""
    bad_crc = ~verify_crcs(records, index.pos, index.headers)
    base = index.headers["base_offset"]
    damaged = bad_crc | (admission.verdicts == Verdict.REFUSE)
    log.damages.update({refusal.base_offset: refusal.rule for refusal in admission.refusals})
    log.damages.update(dict.fromkeys(base[bad_crc].tolist(), CRC_REASON))
    return np.asarray(damaged, np.bool_)


class PartitionReader:
    """`starts`: offsets, ascending, at which a batch begins according to the map. Not thread-safe.

    One Side at a time uses `buffer`: the batches of a chunk are views of it.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic_partition: TopicPartition,
        log: LogView,
        *,
        isolation: IsolationLevel,
        fetch_bytes: int,
        starts: Longs,
        buffer: ReceiveBuffer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic_partition, self.log, self.fetch_bytes = topic_partition, log, fetch_bytes
        self.read_bytes = 0
        self.records_until = BEHIND_ALL
        self.data_rows: tuple[Longs, Longs] | None = None
        self._cluster, self._isolation, self._starts, self._clock = cluster, isolation, starts, clock
        self._buffer = buffer
        self._limits = BatchLimits(
            max_message_bytes=MAX_BATCH_BYTES, isolation_level=isolation, log_append_time=LogAppendTimePolicy.PRODUCER
        )

    def with_cluster(self, cluster: Cluster) -> PartitionReader:
        """Return a reader of the same log over other connections, for use while an iteration of this one is under way."""
        return PartitionReader(
            cluster,
            self.topic_partition,
            self.log,
            isolation=self._isolation,
            fetch_bytes=self.fetch_bytes,
            starts=self._starts,
            buffer=ReceiveBuffer(0, MAX_BATCH_BYTES),
            clock=self._clock,
        )

    def read(self, wanted: OffsetRange, bytes_per_offset: float, *, is_first: bool) -> Iterator[Chunk | Skipped]:
        """Yield every batch whose base offset lies in `wanted`; with `is_first` also one that reaches into it.

        Deleted records are skipped, also those that retention deletes meanwhile: `log_start` rises. Raises RetriableError,
        ConfigError.
        """
        end = min(wanted.end, self.log.log_end)
        position = max(wanted.start, self.log.log_start)
        while position < end:
            least = wanted.start if not is_first and position == wanted.start else 0
            silence = Silence(self._clock)
            reader = RangeReader(
                self._cluster,
                [ReadRange(self.topic_partition, position, end, bytes_per_offset)],
                isolation=self._isolation,
                fetch_bytes=self.fetch_bytes,
                deadline=Deadline.after_ms(PATIENCE_MS, silence),
                max_wait_ms=MAX_WAIT_MS,
                buffers=[self._buffer],
            )
            try:
                skipped, before = None, -1
                for response in reader:
                    (part,) = response
                    if part.fetch_offset == before:  # without progress the loop would never end
                        skipped = self._skip(before, end, "behind it the offsets of the log do not rise")
                        break
                    before = part.fetch_offset
                    chunk = self._chunk(part, least, end)
                    yield chunk
                    silence.reset()
                    skipped = self._skip_behind(chunk, before, end)
                    if skipped is not None:
                        break
                if skipped is None:
                    return
            except DataLossError as loss:
                if loss.log_start_offset is None or loss.log_start_offset <= loss.expected_offset:
                    return  # the log ends before: its tail was truncated
                self.log.log_start = position = loss.log_start_offset
                continue
            except (CorruptBatchError, BatchRefusedError) as error:
                skipped = self._skip(reader.positions()[self.topic_partition], end, str(error))
            self.log.unreadable.append((skipped.start, skipped.end))
            yield skipped
            position = skipped.end

    def _chunk(self, part: IndexedPartition, least: int, end: int) -> Chunk:
        self.log.log_start = max(self.log.log_start, part.log_start_offset)
        bounds = OffsetRange(least, end)
        chunk = make_chunk(self.log, self.topic_partition, part.index, part.records, part.aborted, bounds, self._limits)
        self.read_bytes += chunk.size_bytes
        return chunk

    def _skip_behind(self, chunk: Chunk, position: int, end: int) -> Skipped | None:
        """Return the range to skip behind a response whose last batch is damaged: its end, the reader's position, is unknown."""
        last = len(chunk.index) - 1
        if not chunk.is_damaged[last] or has_an_end(chunk.index.headers[last]):
            return None
        base = int(chunk.index.headers["base_offset"][last])
        return self._skip(max(base, position), end, self.log.damages[base]) if base < end else None

    def _skip(self, at: int, end: int, reason: str) -> Skipped:
        self.log.damages[at] = reason
        starts_behind = self._starts[np.searchsorted(self._starts, at, "right") :]
        return Skipped(at, min(int(starts_behind[0]), end) if len(starts_behind) else end)


def runs_of(offsets: Longs, ends: Longs) -> list[OffsetRange]:
    """Join adjacent ranges; `offsets` ascending."""
    runs: list[OffsetRange] = []
    for start, end in zip(offsets.tolist(), ends.tolist(), strict=True):
        if runs and runs[-1].end == start:
            runs[-1] = OffsetRange(runs[-1].start, end)
        else:
            runs.append(OffsetRange(start, end))
    return runs


def bytes_per_offset(size_bytes: int, offsets: int) -> float:
    """Return the reader's estimate for the rest of a range."""
    return size_bytes / max(1, offsets)
