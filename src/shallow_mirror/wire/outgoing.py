"""Pure: what is sent of one partition's part of a Fetch response: raw batches where they lie, rebuilt ones between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shallow_mirror.errors import BatchRefused, CorruptBatch
from shallow_mirror.types import BatchLimits, TopicPartition
from shallow_mirror.wire.admission import Admission, Verdict
from shallow_mirror.wire.batch_index import BatchIndex, index_batches
from shallow_mirror.wire.rebuild import Rebuilt, rebuild


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """Batches `chosen` of `index`, which lie in `records`, are to be restamped and sent in this order.

    `origins`: for each of them the fetched batch that it is, or was rebuilt from. `rebuilt`, by fetched batch, says which
    records each of those still has; one that has none is there too, and nothing is sent of it. `refused`, by fetched batch:
    why those could not be rebuilt of which nothing is sent.
    """

    index: BatchIndex
    records: memoryview
    chosen: npt.NDArray[np.int64]
    origins: npt.NDArray[np.int64]
    rebuilt: Mapping[int, Rebuilt] = field(default_factory=dict)
    refused: Mapping[int, BatchRefused | CorruptBatch] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.chosen)


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

    Without a batch to rebuild nothing is copied. With one, the raw batches are, too: they are sent from one buffer.
    """
    wanted = np.flatnonzero(np.isin(admission.verdicts, (Verdict.RAW, Verdict.REBUILD)))
    if not (admission.verdicts == Verdict.REBUILD).any():
        return Outgoing(index, records, wanted, wanted)
    together = bytearray()
    origins: list[int] = []
    rebuilt: dict[int, Rebuilt] = {}
    refused: dict[int, BatchRefused | CorruptBatch] = {}
    for i in wanted.tolist():
        start = int(index.pos[i])
        batch = records[start : start + int(index.size_bytes[i])]
        if admission.verdicts[i] == Verdict.RAW:
            together += batch
            origins.append(i)
            continue
        try:
            made = rebuild(batch, topic_partition, position=position, limits=limits, max_opened_bytes=max_opened_bytes)
        except (BatchRefused, CorruptBatch) as error:
            if not keeps_refused:
                raise
            refused[i] = error
            continue
        rebuilt[i] = made
        together += b"".join(made.batches)
        origins += [i] * len(made.batches)
    buffer = memoryview(together)
    return Outgoing(index_batches(buffer), buffer, np.arange(len(origins)), np.array(origins, np.int64), rebuilt, refused)
