"""Pure: the batches of one partition's part of a Fetch response that are opened: to be rebuilt, or to become one.

What is done to all records of many batches at once costs little more than for those of one. So batches are opened one by one,
but rewritten together, as many as bound memory. What cannot be read is rebuilt alone, which says what is wrong with it; where
it was to be opened only to become one with others, it is left as it is: the target has the last word on it.
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

_BYTES_TOGETHER, _RECORDS_TOGETHER = 2 << 20, 1 << 15
"""At the most, of what is rewritten at once, unless one batch has more bytes: what caches hold."""


@dataclass(frozen=True, slots=True, eq=False)
class RebuiltRun:
    """Batches of the index, and what they became: one batch, but for the target's size limit."""

    members: tuple[int, ...]
    rebuilt: Rebuilt


class _Opened(NamedTuple):
    """`rank` among the batches that are sent."""

    number: int
    rank: int
    is_small: bool
    codec: int
    records: int
    block: memoryview


@dataclass(slots=True)
class _Run:
    """Batches that become one."""

    batches: list[_Opened] = field(default_factory=list)
    size_bytes: int = 0
    records: int = 0

    def add(self, one: _Opened) -> None:
        self.batches.append(one)
        self.size_bytes += len(one.block)
        self.records += one.records

    def takes(self, one: _Opened, most_bytes: int) -> bool:
        if not self.batches:
            return True
        last = self.batches[-1]
        is_alike = last.is_small and one.is_small and last.rank + 1 == one.rank and last.codec == one.codec
        return is_alike and self.size_bytes + len(one.block) <= most_bytes and self.records + one.records <= MOST_RECORDS


class DeepPath:
    """`runs`, by their first batches; `refused`, by batch: why it could not be rebuilt."""

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
    ) -> None:
        self.runs: dict[int, RebuiltRun] = {}
        self.refused: dict[int, BatchRefusedError | CorruptBatchError] = {}
        self._index, self._records, self._verdicts = index, records, verdicts
        self._place, self._position, self._limits = topic_partition, position, limits
        self._max_opened_bytes, self._keeps_refused = max_opened_bytes, keeps_refused
        self._is_small = find_small(index, verdicts, limits)
        self._wanted = np.flatnonzero((verdicts == Verdict.REBUILD) | self._is_small)
        self._together: list[_Run] = []
        self._bytes_together = self._records_together = 0
        self._run = _Run()

    def __bool__(self) -> bool:
        """Whether there is a batch to open."""
        return len(self._wanted) > 0

    def go(self) -> None:
        """Raises ConfigError; BatchRefusedError and CorruptBatchError unless it keeps what is refused."""
        wanted, headers = self._wanted, self._index.headers[self._wanted]
        is_whole = (headers["base_offset"] >= self._position) & (headers["records_count"] <= MOST_RECORDS)
        columns = (
            wanted,
            np.cumsum(np.isin(self._verdicts, SENT))[wanted],
            self._is_small[wanted],
            headers["attributes"] & CODEC_MASK,
            headers["records_count"],
            is_whole & verify_crcs(self._records, self._index.pos[wanted], headers),
        )
        for number, rank, is_small, codec, records, can_be_opened in zip(*(one.tolist() for one in columns), strict=True):
            block = self._open(number, Codec(codec)) if can_be_opened else None
            if block is None:
                self._rebuild_alone(number)
            else:
                self._add(_Opened(number, rank, is_small, codec, records, block))
        self._end_run()
        self._rewrite()

    def _open(self, number: int, codec: Codec) -> memoryview | None:
        start, size = int(self._index.pos[number]), int(self._index.size_bytes[number])
        try:
            return decompress(self._records[start + BATCH_HEADER_BYTES : start + size], codec, self._max_opened_bytes)
        except (CorruptBlockError, BlockTooLargeError):
            return None

    def _add(self, one: _Opened) -> None:
        if not self._run.takes(one, most_bytes(self._limits)):
            self._end_run()
        self._run.add(one)

    def _end_run(self) -> None:
        """What was opened in vain, because it stays one, is sent as it is."""
        run, self._run = self._run, _Run()
        if not run.batches or (len(run.batches) == 1 and self._verdicts[run.batches[0].number] != Verdict.REBUILD):
            return
        self._bytes_together += run.size_bytes
        self._records_together += run.records
        if self._bytes_together > _BYTES_TOGETHER or self._records_together > _RECORDS_TOGETHER:
            self._rewrite()
            self._bytes_together, self._records_together = run.size_bytes, run.records
        self._together.append(run)

    def _rewrite(self) -> None:
        runs, self._together = self._together, []
        batches = [one for run in runs for one in run.batches]
        if not batches:
            return
        lengths = [len(run.batches) for run in runs]
        headers = self._index.headers[[one.number for one in batches]]
        found = rebuild_together(headers, [one.block for one in batches], lengths, self._limits)
        for run, made in zip(runs, found, strict=True):
            members = tuple(one.number for one in run.batches)
            if made is not None:
                self.runs[members[0]] = RebuiltRun(members, made)
            else:
                for number in members:
                    self._rebuild_alone(number)

    def _rebuild_alone(self, number: int) -> None:
        if self._verdicts[number] != Verdict.REBUILD:
            return
        start, size = int(self._index.pos[number]), int(self._index.size_bytes[number])
        batch, most = self._records[start : start + size], self._max_opened_bytes
        try:
            made = rebuild(batch, self._place, position=self._position, limits=self._limits, max_opened_bytes=most)
        except (BatchRefusedError, CorruptBatchError) as error:
            if not self._keeps_refused:
                raise
            self.refused[number] = error
        else:
            self.runs[number] = RebuiltRun((number,), made)
