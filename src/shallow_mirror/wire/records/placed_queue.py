"""Pure: the batches that are sent to one partition so that each is appended at its own offset, in order and without a hole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batches.batch_index import BatchIndex, index_batches
from shallow_mirror.wire.batches.header import BASE_OFFSET
from shallow_mirror.wire.batches.restamping import SharedProducer, StampedInPlace, restamped_at
from shallow_mirror.wire.protocol.produce import RawBatch
from shallow_mirror.wire.records.fillers import Fillers, OffsetSpans
from shallow_mirror.wire.records.rebuild_in_place import PlacedBatch

_SHORT_HOLE = 1_000
"""The fillers of up to so many offsets are made with the rebuilt batches; those of longer holes when they are sent."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Batches that are there, with their offsets."""

    offsets: list[int]
    batches: list[RawBatch]

    def __len__(self) -> int:
        return len(self.offsets)

    def offset(self, i: int) -> int:
        return self.offsets[i]


@dataclass(frozen=True, slots=True, eq=False)
class _Hole:
    """Offsets that fillers take. `timestamp_ms`: of the batch beside them."""

    spans: OffsetSpans
    timestamp_ms: int

    def __len__(self) -> int:
        return len(self.spans)

    def offset(self, i: int) -> int:
        return self.spans[i][0]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedQueue(Sequence[RawBatch]):
    """Batches in the order of their offsets. The fillers of a long hole are made when they are taken: there may be thousands."""

    runs: Sequence[_Run | _Hole]
    fillers: Fillers
    producer: SharedProducer
    _starts: Sequence[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", np.cumsum([0, *map(len, self.runs)]).tolist())

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
        if isinstance(run, _Run):
            return run.batches[k]
        offset, count = run.spans[k]
        return restamped_at(self.fillers.batch(count, run.timestamp_ms), offset, self.producer)

    def batches(self) -> Sequence[RawBatch]:
        """Return the batches for a pipeline, which takes one after another: as a list, unless a long hole is among them."""
        return self.runs[0].batches if len(self.runs) == 1 and isinstance(self.runs[0], _Run) else self

    def offset(self, i: int) -> int:
        """Return the offset of the i-th batch on the target."""
        run, k = self._find(i)
        return run.offset(k)

    def first_misplaced(self, base_offsets: list[int], checked: int = 0) -> int | None:
        """Return the first of the batches that was appended at another offset than its own; None: all are in place.

        `checked`: so many were compared before.
        """
        for run, start in zip(self.runs, self._starts, strict=False):
            first, end = max(checked - start, 0), min(len(run), len(base_offsets) - start)
            if first >= end:
                continue
            appended = base_offsets[start + first : start + end]
            wanted = run.offsets[first:end] if isinstance(run, _Run) else [run.offset(i) for i in range(first, end)]
            if appended != wanted:
                return (
                    start + first + next(i for i, (at, offset) in enumerate(zip(appended, wanted, strict=True)) if at != offset)
                )
        return None

    def without_first(self) -> PlacedQueue:
        """Return the same queue without its first batch."""
        first, *runs = self.runs
        if isinstance(first, _Run):
            return PlacedQueue([_Run(first.offsets[1:], first.batches[1:]), *runs], self.fillers, self.producer)
        spans = replace(first.spans, start=min(first.spans.start + first.spans.most, first.spans.end))
        return PlacedQueue([_Hole(spans, first.timestamp_ms), *runs], self.fillers, self.producer)

    def _find(self, i: int) -> tuple[_Run | _Hole, int]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        number = bisect_right(self._starts, i) - 1
        return self.runs[number], i - self._starts[number]


class _Piece(NamedTuple):
    """The offsets of the next batches, of those that were made, or of the raw ones."""

    offsets: list[int]
    is_made: bool


class QueueBuilder:
    """Collects batches to send, in the order of offsets, with holes between. `log_end`: the end of the log behind them.

    Rebuilt batches and short fillers are written one behind the other, so that all of them are restamped at once.
    """

    def __init__(self, fillers: Fillers, producer: SharedProducer, log_end: int) -> None:
        self._fillers = fillers
        self._producer = producer
        self._pieces: list[_Piece | _Hole] = []
        self._made = bytearray()
        self.log_end = log_end

    def add_raw(self, offsets: list[int], end: int, timestamp_ms: int) -> None:
        """Add raw batches that follow each other up to the offset `end`. `timestamp_ms`: of the first."""
        self.fill_up_to(offsets[0], timestamp_ms)
        self._pieces.append(_Piece(offsets, is_made=False))
        self.log_end = end

    def add_rebuilt(self, placed: PlacedBatch) -> None:
        self.fill_up_to(placed.offset, int(index_batches(memoryview(placed.batch)).headers["max_timestamp"][0]))
        self._add_made(placed.offset, placed.batch)
        self.log_end = placed.end

    def fill_up_to(self, offset: int, timestamp_ms: int) -> None:
        if offset <= self.log_end:
            return
        spans = OffsetSpans(self.log_end, offset, self._fillers.most_records)
        if offset - self.log_end > _SHORT_HOLE:
            self._pieces.append(_Hole(spans, timestamp_ms))
        else:
            for first, count in spans:
                self._add_made(first, self._fillers.batch(count, timestamp_ms))
        self.log_end = offset

    def _add_made(self, offset: int, batch: bytes | bytearray) -> None:
        start = len(self._made)
        self._made += batch
        BASE_OFFSET.pack_into(self._made, start, offset)
        self._pieces.append(_Piece([offset], is_made=True))

    def build(
        self, records: memoryview, index: BatchIndex, raw: npt.NDArray[np.int64]
    ) -> tuple[PlacedQueue, Sequence[StampedInPlace]]:
        """Return the queue, and its batches to restamp. `raw`: which batches of `index`, in `records`, were added."""
        stamped = [StampedInPlace(records, index, raw, self._producer)]
        if self._made:
            view = memoryview(self._made)
            made = index_batches(view)
            stamped.append(StampedInPlace(view, made, np.arange(len(made)), self._producer))
        raw_batches = iter(stamped[0].batches())
        made_batches = iter(stamped[1].batches() if self._made else [])
        runs: list[_Run | _Hole] = []
        for piece in self._pieces:
            if isinstance(piece, _Hole):
                runs.append(piece)
                continue
            if not runs or not isinstance(runs[-1], _Run):
                runs.append(run := _Run([], []))
            run.offsets.extend(piece.offsets)
            run.batches.extend(islice(made_batches if piece.is_made else raw_batches, len(piece.offsets)))
        return PlacedQueue(runs, self._fillers, self._producer), stamped
