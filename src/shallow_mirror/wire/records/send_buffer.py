"""Pure: what is sent of one partition's part of a Fetch response: raw batches, and rebuilt ones between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.types import BatchLimits, TopicPartition
from shallow_mirror.wire.batches.admission import SENT, Admission
from shallow_mirror.wire.batches.batch_index import BatchIndex, index_batches
from shallow_mirror.wire.records.rebuild_pipeline import RebuildPipeline, RebuiltRun
from shallow_mirror.wire.records.varints import Longs


class SentPart(NamedTuple):
    """`records` records, from the `first` one on, of the `sent`-th batch that is sent."""

    sent: int
    first: int
    records: int


class Rewritten(NamedTuple):
    """The place of the records of an opened batch. `offsets`: the source offset of each, perhaps none."""

    offsets: Longs
    parts: Sequence[SentPart]


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """Batches `chosen` of `index`, which lie in `records`, are to be restamped and sent in this order."""

    index: BatchIndex
    records: memoryview
    chosen: Longs
    firsts: Longs
    """For each of them the first fetched batch whose records it has."""
    lasts: Longs
    """The last one."""
    rewritten: Mapping[int, Rewritten] = field(default_factory=dict)
    """By fetched batch, those that are not sent as they are."""
    refused: Mapping[int, BatchRefusedError | CorruptBatchError] = field(default_factory=dict)
    """By fetched batch, why those could not be rebuilt of which nothing is sent."""

    def __len__(self) -> int:
        return len(self.chosen)

    def continuing(self) -> list[int]:
        """Return which batches continue the one in front of them: parts of a split batch, or of coalesced ones."""
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
    """Return the batches to send. `admission`: of `index` at `position`.

    Raises as `rebuild`; with `keeps_refused` only its ConfigErrors.
    """
    sent_batches = np.flatnonzero(np.isin(admission.verdicts, SENT))
    pipeline = RebuildPipeline(
        index,
        records,
        admission.verdicts,
        topic_partition=topic_partition,
        position=position,
        limits=limits,
        max_opened_bytes=max_opened_bytes,
        keeps_refused=keeps_refused,
        cut=admission.cut,
    )
    # The common case copies nothing. With a batch to open, the raw batches are copied as well: all are sent from one buffer.
    if not pipeline:
        return Outgoing(index, records, sent_batches, sent_batches, sent_batches)
    pipeline.run()
    buffer = bytearray()
    firsts: list[int] = []
    lasts: list[int] = []
    rewritten: dict[int, Rewritten] = {}
    for i, start, size in zip(
        sent_batches.tolist(), index.pos[sent_batches].tolist(), index.size_bytes[sent_batches].tolist(), strict=True
    ):
        # A later member of a coalesced run went with the first one; a refused batch is recorded as quarantined, and not sent.
        if i in rewritten or i in pipeline.refused:
            continue
        run = pipeline.runs.get(i)
        if run is None:
            buffer += records[start : start + size]
            firsts.append(i)
            lasts.append(i)
            continue
        rewritten.update(_sent_parts(run, index, len(firsts)))
        buffer += b"".join(run.rebuilt.batches)
        firsts += [i] * len(run.rebuilt.batches)
        lasts += [run.members[-1]] * len(run.rebuilt.batches)
    sent = memoryview(buffer)
    chosen = np.arange(len(firsts))
    return Outgoing(
        index_batches(sent), sent, chosen, np.array(firsts, np.int64), np.array(lasts, np.int64), rewritten, pipeline.refused
    )


def _sent_parts(run: RebuiltRun, index: BatchIndex, sent: int) -> Iterator[tuple[int, Rewritten]]:
    """Yield the place of the records of each member of a run. `sent`: number of batches that are sent in front of the run."""
    rebuilt, members = run.rebuilt, run.members
    # A batch that is rebuilt alone may lose records in front of the position; members of a run are whole.
    counts = index.headers["records_count"][list(members)].tolist() if len(members) > 1 else [len(rebuilt.offsets)]
    done, first = 0, 0
    left = list(rebuilt.counts)
    for number, count in zip(members, counts, strict=True):
        parts = []
        end = done + count
        while done < end:
            taken = min(end - done, left[0] - first)
            parts.append(SentPart(sent, first, taken))
            done, first = done + taken, first + taken
            if first == left[0]:
                sent, first = sent + 1, 0
                del left[0]
        yield number, Rewritten(rebuilt.offsets[end - count : end], parts)
