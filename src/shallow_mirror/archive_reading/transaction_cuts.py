"""Pure: ends of partitions that tear no transaction.

With transaction.version 2 (Kafka 4, KIP-890) every transaction has a producer epoch of its own: (producer id, epoch) of its
batches names it in all partitions, and its markers carry the next epoch. Before, all transactions of a producer share an epoch,
and so do their markers: which of them belong together in two partitions cannot be known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from shallow_mirror.archive_reading.segment_reader import SegmentBatches
from shallow_mirror.types import SourcePartition
from shallow_mirror.wire.batches.control_records import MarkerType, parse_marker
from shallow_mirror.wire.batches.header import CONTROL_BIT, TRANSACTIONAL_BIT

TxnName = tuple[int, int]
"""Producer id and epoch of the batches."""


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
    producer_epoch: int
    start: int
    end: int
    is_aborted: bool = False


class TxnScan:
    """The committed transactions in batches that are added in the order of offsets, partition by partition."""

    def __init__(self) -> None:
        self._open: dict[tuple[SourcePartition, int], _OpenTxn] = {}
        self._closed: list[TxnPart] = []
        self._without_names: set[int] = set()
        """Ids of producers whose transactions share an epoch."""

    @property
    def unnamed_count(self) -> int:
        """Return the number of parts whose transaction cannot be found in other partitions."""
        return sum(part.name is None for part in self.parts())

    def add(self, batches: SegmentBatches) -> None:
        headers, last = batches.index.headers, batches.index.last_offset
        attributes = headers["attributes"]
        for i in np.flatnonzero((attributes & TRANSACTIONAL_BIT) != 0).tolist():
            producer_id, producer_epoch = int(headers["producer_id"][i]), int(headers["producer_epoch"][i])
            base, end = int(headers["base_offset"][i]), int(last[i]) + 1
            key = (batches.source, producer_id)
            if attributes[i] & CONTROL_BIT:
                if headers["records_count"][i]:
                    self._end(key, producer_epoch, parse_marker(batches.batch(i)).type)
                continue
            txn = self._open.get(key)
            if txn is None:
                txn = self._open[key] = _OpenTxn(producer_epoch, base, end)
            txn.end = max(txn.end, end)
            if any(aborted_id == producer_id and first <= base for aborted_id, first in batches.aborted):
                txn.is_aborted = True

    def _end(self, key: tuple[SourcePartition, int], marker_epoch: int, marker: MarkerType) -> None:
        source, producer_id = key
        txn = self._open.pop(key, None)
        if txn is None or marker is not MarkerType.COMMIT:
            return
        is_named = marker_epoch != txn.producer_epoch
        if not is_named:
            self._without_names.add(producer_id)
        self._closed.append(TxnPart(source, txn.start, txn.end, (producer_id, txn.producer_epoch) if is_named else None))

    def parts(self) -> list[TxnPart]:
        """Return the parts so far; those whose marker was not added belong to a transaction that is not known to be aborted."""
        unended = [
            TxnPart(source, txn.start, txn.end, None if producer_id in self._without_names else (producer_id, txn.producer_epoch))
            for (source, producer_id), txn in self._open.items()
            if not txn.is_aborted
        ]
        return [*self._closed, *unended]
