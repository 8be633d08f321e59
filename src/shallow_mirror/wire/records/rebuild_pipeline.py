"""Pure: the batches of one partition's part of a Fetch response that are opened: to be rebuilt or coalesced.

Array operations on the records of many batches cost little more than on those of one. So batches are opened one by one, but
rewritten together, as many as memory allows. What cannot be read is rebuilt alone, which names the error; where it was opened
only to be coalesced, it is left as it is: the target accepts or refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.types import BatchLimits, TopicPartition
from shallow_mirror.wire.batches.admission import SENT, Verdict
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.coalescing import MOST_RECORDS, find_small, most_bytes
from shallow_mirror.wire.batches.crc import verify_crcs
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, CODEC_MASK, Codec
from shallow_mirror.wire.records.compression import BlockTooLargeError, CorruptBlockError, decompress
from shallow_mirror.wire.records.rebuild import Rebuilt, rebuild, rebuild_together

_MAX_PENDING_BYTES, _MAX_PENDING_RECORDS = 2 << 20, 1 << 15
"""Limits of what is rewritten at once, unless one batch has more bytes: what fits into CPU caches."""


@dataclass(frozen=True, slots=True, eq=False)
class RebuiltRun:
    """Batches of the index, and their result: one batch, or several if the target's size limit needs that."""

    members: tuple[int, ...]
    rebuilt: Rebuilt


class _Opened(NamedTuple):
    """A decompressed batch. `rank`: among the batches that are sent."""

    number: int
    rank: int
    is_small: bool
    codec: int
    records: int
    block: memoryview


@dataclass(slots=True)
class _Run:
    """Batches that are coalesced."""

    batches: list[_Opened] = field(default_factory=list)
    size_bytes: int = 0
    records: int = 0

    def add(self, opened: _Opened) -> None:
        self.batches.append(opened)
        self.size_bytes += len(opened.block)
        self.records += opened.records

    def takes(self, opened: _Opened, most_bytes: int) -> bool:
        if not self.batches:
            return True
        last = self.batches[-1]
        is_alike = last.is_small and opened.is_small and last.rank + 1 == opened.rank and last.codec == opened.codec
        return is_alike and self.size_bytes + len(opened.block) <= most_bytes and self.records + opened.records <= MOST_RECORDS


class RebuildPipeline:
    """Opens and rebuilds. Results: `runs`, by their first batches, and `refused`, by batch: why it could not be rebuilt."""

    def __init__(
        self,
        index: BatchIndex,
        records: memoryview,
        verdicts: npt.NDArray[np.int8],
        *,
        topic_partition: TopicPartition,
        position: int,
        limits: BatchLimits,
        max_opened_bytes: int,
        keeps_refused: bool,
        cut: int | None = None,
    ) -> None:
        self.runs: dict[int, RebuiltRun] = {}
        self.refused: dict[int, BatchRefusedError | CorruptBatchError] = {}
        self._index, self._records, self._verdicts = index, records, verdicts
        self._topic_partition, self._position, self._limits = topic_partition, position, limits
        self._max_opened_bytes, self._keeps_refused = max_opened_bytes, keeps_refused
        self._cut = cut
        self._is_small = find_small(index, verdicts, limits)
        self._to_open = np.flatnonzero((verdicts == Verdict.REBUILD) | self._is_small)
        self._runs_to_rewrite: list[_Run] = []
        self._pending_bytes = self._pending_records = 0
        self._run = _Run()

    def __bool__(self) -> bool:
        """Return whether there is a batch to open."""
        return len(self._to_open) > 0

    def run(self) -> None:
        """Rebuild everything. Raises ConfigError; BatchRefusedError and CorruptBatchError unless it keeps refused batches."""
        to_open, headers = self._to_open, self._index.headers[self._to_open]
        is_whole = (headers["base_offset"] >= self._position) & (headers["records_count"] <= MOST_RECORDS)
        if self._cut is not None:
            is_whole &= headers["base_offset"] + headers["last_offset_delta"] < self._cut
        columns = (
            to_open,
            np.cumsum(np.isin(self._verdicts, SENT))[to_open],
            self._is_small[to_open],
            headers["attributes"] & CODEC_MASK,
            headers["records_count"],
            is_whole & verify_crcs(self._records, self._index.pos[to_open], headers),
        )
        for number, rank, is_small, codec, records, can_be_opened in zip(*(column.tolist() for column in columns), strict=True):
            block = self._open(number, Codec(codec)) if can_be_opened else None
            if block is None:
                self._rebuild_alone(number)
                continue
            opened = _Opened(number, rank, is_small, codec, records, block)
            if not self._run.takes(opened, most_bytes(self._limits)):
                self._end_run()
            self._run.add(opened)
        self._end_run()
        self._rewrite()

    def _open(self, number: int, codec: Codec) -> memoryview | None:
        start, size = int(self._index.pos[number]), int(self._index.size_bytes[number])
        try:
            return decompress(self._records[start + BATCH_HEADER_BYTES : start + size], codec, self._max_opened_bytes)
        except (CorruptBlockError, BlockTooLargeError):
            return None

    def _end_run(self) -> None:
        run, self._run = self._run, _Run()
        # A batch that was opened to be coalesced and stayed alone is sent as it is.
        if not run.batches or (len(run.batches) == 1 and self._verdicts[run.batches[0].number] != Verdict.REBUILD):
            return
        self._pending_bytes += run.size_bytes
        self._pending_records += run.records
        if self._pending_bytes > _MAX_PENDING_BYTES or self._pending_records > _MAX_PENDING_RECORDS:
            self._rewrite()
            self._pending_bytes, self._pending_records = run.size_bytes, run.records
        self._runs_to_rewrite.append(run)

    def _rewrite(self) -> None:
        runs, self._runs_to_rewrite = self._runs_to_rewrite, []
        batches = [opened for run in runs for opened in run.batches]
        if not batches:
            return
        lengths = [len(run.batches) for run in runs]
        headers = self._index.headers[[opened.number for opened in batches]]
        rebuilt_runs = rebuild_together(headers, [opened.block for opened in batches], lengths, self._limits)
        for run, rebuilt in zip(runs, rebuilt_runs, strict=True):
            members = tuple(opened.number for opened in run.batches)
            if rebuilt is not None:
                self.runs[members[0]] = RebuiltRun(members, rebuilt)
            else:
                for number in members:
                    self._rebuild_alone(number)

    def _rebuild_alone(self, number: int) -> None:
        if self._verdicts[number] != Verdict.REBUILD:
            return
        start, size = int(self._index.pos[number]), int(self._index.size_bytes[number])
        batch, most = self._records[start : start + size], self._max_opened_bytes
        try:
            rebuilt = rebuild(
                batch,
                self._topic_partition,
                position=self._position,
                limits=self._limits,
                max_opened_bytes=most,
                cut=self._cut,
            )
        except (BatchRefusedError, CorruptBatchError) as error:
            if not self._keeps_refused:
                raise
            self.refused[number] = error
        else:
            self.runs[number] = RebuiltRun((number,), rebuilt)
