"""Pure: what is sent of one partition's part of a Fetch response: raw batches where they lie, rebuilt ones between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.types import BatchLimits, TopicPartition
from shallow_mirror.wire.batches.admission import SENT, Admission
from shallow_mirror.wire.batches.batch_index import BatchIndex, index_batches
from shallow_mirror.wire.records.rebuild_pipeline import DeepPath, RebuiltRun
from shallow_mirror.wire.records.varints import Longs


class SentPart(NamedTuple):
    """So many records, from the `first` one on, of the `sent`-th batch that is sent."""

    sent: int
    first: int
    records: int


class Rewritten(NamedTuple):
    """Where the records of one fetched batch went that was opened. `offsets`: the source offset of each; there may be none."""

    offsets: Longs
    parts: Sequence[SentPart]


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """Batches `chosen` of `index`, which lie in `records`, are to be restamped and sent in this order.

    `firsts` and `lasts`: for each of them the first and the last fetched batch whose records it has. `rewritten`, by fetched
    batch, has those that are not sent as they are. `refused`, by fetched batch: why those could not be rebuilt of which nothing
    is sent.
    """

    index: BatchIndex
    records: memoryview
    chosen: Longs
    firsts: Longs
    lasts: Longs
    rewritten: Mapping[int, Rewritten] = field(default_factory=dict)
    refused: Mapping[int, BatchRefusedError | CorruptBatchError] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.chosen)

    def continuing(self) -> list[int]:
        """Return which of them go on with what the one in front of them began: parts of one fetched batch that had to be split,
        or of several that became more than one."""
        return (np.flatnonzero(self.firsts[1:] == self.firsts[:-1]) + 1).tolist()


def make_outgoing(
    index: BatchIndex,
    records: memoryview,
    admission: Admission,
    *,
    topic_partition: TopicPartition,
    position: int,
    limits: BatchLimits,
    max_opened_bytes: int,
    keeps_refused: bool = False,
) -> Outgoing:
    """`admission` is that of `index` at `position`. Raises what `rebuild` raises; with `keeps_refused` only its ConfigErrors.

    Without a batch to open nothing is copied. With one, the raw batches are, too: they are sent from one buffer.
    """
    wanted = np.flatnonzero(np.isin(admission.verdicts, SENT))
    deep = DeepPath(
        index,
        records,
        admission.verdicts,
        topic_partition=topic_partition,
        position=position,
        limits=limits,
        max_opened_bytes=max_opened_bytes,
        keeps_refused=keeps_refused,
    )
    if not deep:
        return Outgoing(index, records, wanted, wanted, wanted)
    deep.go()
    together = bytearray()
    firsts: list[int] = []
    lasts: list[int] = []
    rewritten: dict[int, Rewritten] = {}
    for i, start, size in zip(wanted.tolist(), index.pos[wanted].tolist(), index.size_bytes[wanted].tolist(), strict=True):
        if i in rewritten or i in deep.refused:
            continue
        run = deep.runs.get(i)
        if run is None:
            together += records[start : start + size]
            firsts.append(i)
            lasts.append(i)
            continue
        rewritten.update(_placed(run, index, len(firsts)))
        together += b"".join(run.rebuilt.batches)
        firsts += [i] * len(run.rebuilt.batches)
        lasts += [run.members[-1]] * len(run.rebuilt.batches)
    sent = memoryview(together)
    chosen = np.arange(len(firsts))
    return Outgoing(
        index_batches(sent), sent, chosen, np.array(firsts, np.int64), np.array(lasts, np.int64), rewritten, deep.refused
    )


def _placed(run: RebuiltRun, index: BatchIndex, sent: int) -> Iterator[tuple[int, Rewritten]]:
    """`sent`: how many batches are sent in front of the run. Of one that is alone there may be fewer records than it had."""
    rebuilt, members = run.rebuilt, run.members
    counts = index.headers["records_count"][list(members)].tolist() if len(members) > 1 else [len(rebuilt.offsets)]
    at, first = 0, 0
    left = list(rebuilt.counts)
    for number, count in zip(members, counts, strict=True):
        parts = []
        behind = at + count
        while at < behind:
            taken = min(behind - at, left[0] - first)
            parts.append(SentPart(sent, first, taken))
            at, first = at + taken, first + taken
            if first == left[0]:
                sent, first = sent + 1, 0
                del left[0]
        yield number, Rewritten(rebuilt.offsets[behind - count : behind], parts)
