"""Driver: ends of partitions that tear no transaction.

With transaction.version 2 (Kafka 4, KIP-890) every transaction has a producer epoch of its own: (producer id, epoch) of its
batches names it in all partitions, and its markers carry the next epoch. Before, all transactions of a producer share an epoch,
and so do their markers: which of them belong together in two partitions cannot be known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from shallow_mirror.archive_format import AbortedTxn
from shallow_mirror.archive_reading.segment_reader import SegmentBatches
from shallow_mirror.types import SourcePartition
from shallow_mirror.wire import CONTROL_BIT, TRANSACTIONAL_BIT, MarkerType, parse_marker

TxnName = tuple[int, int]
"""Producer id and epoch of the batches."""
NO_END = (1 << 63) - 1
"""Of a part whose marker was not read."""


@dataclass(frozen=True, slots=True)
class TxnPart:
    """Records [start, end) of one committed transaction in one partition. `name` None: it may have parts elsewhere."""

    source: SourcePartition
    start: int
    end: int
    name: TxnName | None


def whole_ends(ends: Mapping[SourcePartition, int], parts: Iterable[TxnPart]) -> dict[SourcePartition, int]:
    """Return the highest ends, none above `ends`, that have all parts of a transaction below them or none.

    Lowering one end may tear another transaction, whose parts lower others: every part is visited once.
    """
    lowered = dict(ends)
    waiting: defaultdict[SourcePartition, list[TxnPart]] = defaultdict(list)
    of_txn: defaultdict[TxnName, list[TxnPart]] = defaultdict(list)
    for part in parts:
        if part.source in lowered:
            waiting[part.source].append(part)
            if part.name is not None:
                of_txn[part.name].append(part)
    for of_partition in waiting.values():
        of_partition.sort(key=lambda part: part.end)
    to_check = list(waiting)
    while to_check:
        of_partition = waiting[source := to_check.pop()]
        while of_partition and of_partition[-1].end > lowered[source]:
            left_out = of_partition.pop()
            for part in [left_out] if left_out.name is None else of_txn.pop(left_out.name, []):
                if part.start < lowered[part.source]:
                    lowered[part.source] = part.start
                    to_check.append(part.source)
    return lowered


@dataclass(slots=True)
class _OpenTxn:
    """A committed transaction whose marker was not read yet. `start`, `end`: of its data so far."""

    producer_epoch: int
    start: int
    end: int


class TxnScan:
    """The committed transactions in batches that are added in the order of offsets, partition by partition.

    The `aborted` lists of rows say which data is aborted, as for every reader of an archive; all other data is committed, also
    if its marker is not archived yet. Markers show where a transaction ends, and whether its epoch is its own.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[SourcePartition, int], _OpenTxn] = {}
        self._ended: list[TxnPart] = []
        self._read_ends: dict[SourcePartition, int] = {}

    @property
    def unnamed_count(self) -> int:
        """Return the number of parts whose transaction cannot be found in other partitions."""
        return sum(part.name is None for part in self.parts())

    def add(self, batches: SegmentBatches) -> None:
        headers, last = batches.index.headers, batches.index.last_offset
        attributes = headers["attributes"]
        aborted: defaultdict[int, list[AbortedTxn]] = defaultdict(list)
        for txn in batches.segment.stored.aborted if batches.segment.stored is not None else ():
            aborted[txn.producer_id].append(txn)
        for i in np.flatnonzero((attributes & TRANSACTIONAL_BIT) != 0).tolist():
            producer_id, producer_epoch = int(headers["producer_id"][i]), int(headers["producer_epoch"][i])
            base, end = int(headers["base_offset"][i]), int(last[i]) + 1
            key = (batches.source, producer_id)
            if attributes[i] & CONTROL_BIT:
                if headers["records_count"][i]:
                    self._end(key, producer_epoch, parse_marker(batches.batch(i)).type)
                continue
            is_aborted = any(
                txn.first_offset <= base and (txn.last_offset is None or base <= txn.last_offset) for txn in aborted[producer_id]
            )
            open_txn = self._open.get(key)
            if open_txn is not None and (is_aborted or open_txn.producer_epoch != producer_epoch):
                self._end_without_marker(key)
                open_txn = None
            if is_aborted:
                continue
            if open_txn is None:
                self._open[key] = _OpenTxn(producer_epoch, base, end)
            else:
                open_txn.end = max(open_txn.end, end)
        self._read_ends[batches.source] = batches.segment.segment.source_end

    def add_hole(self, source: SourcePartition, end: int) -> None:
        """Take offsets up to `end` that the archive does not have: the markers of open transactions may have been there."""
        for key in [key for key in self._open if key[0] == source]:
            self._end_without_marker(key)
        self._read_ends[source] = end

    def _end(self, key: tuple[SourcePartition, int], marker_epoch: int, marker: MarkerType) -> None:
        source, producer_id = key
        if marker is not MarkerType.COMMIT:
            # Of an aborted transaction behind it: the marker of the committed one is missing.
            self._end_without_marker(key)
            return
        txn = self._open.pop(key, None)
        if txn is None:
            return
        # Before version 2 only an abort, by the coordinator, has a higher epoch: this commit has its epoch for itself.
        is_named = marker_epoch != txn.producer_epoch
        self._ended.append(TxnPart(source, txn.start, txn.end, (producer_id, txn.producer_epoch) if is_named else None))

    def _end_without_marker(self, key: tuple[SourcePartition, int]) -> None:
        source, producer_id = key
        txn = self._open.pop(key, None)
        if txn is not None:
            self._ended.append(TxnPart(source, txn.start, txn.end, (producer_id, txn.producer_epoch)))

    def read_end(self, source: SourcePartition) -> int:
        """Return the end of the last row of a partition that was added. Raises KeyError without one."""
        return self._read_ends[source]

    def has_open(self, source: SourcePartition, below: int) -> bool:
        """Return whether a committed transaction that begins below an offset has no marker yet in the added batches."""
        return any(of_partition == source and txn.start < below for (of_partition, _), txn in self._open.items())

    def parts(self) -> list[TxnPart]:
        """Return the parts so far. One whose marker was not added has no end: more of it may follow.

        Without its marker it is not known whether a transaction has its epoch for itself. It is taken to have.
        """
        open_parts = [
            TxnPart(source, txn.start, NO_END, (producer_id, txn.producer_epoch))
            for (source, producer_id), txn in self._open.items()
        ]
        return [*self._ended, *open_parts]
