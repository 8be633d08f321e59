"""Pure: record batches of magic 2 made of columns: rows are ordered by target, cut into batches, and compressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shallow_mirror.wire.batches.batch_builder import build_header
from shallow_mirror.wire.batches.header import TRANSACTIONAL_BIT, Codec
from shallow_mirror.wire.columns.record_columns import RecordColumns, join_records
from shallow_mirror.wire.protocol.produce import SplitBatch
from shallow_mirror.wire.records.compression import compress
from shallow_mirror.wire.records.varints import Longs


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec, and its level; None: that of the codec's library, of zstd the mirror's."""

    codec: Codec
    level: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ColumnBatch:
    """A batch without a producer. `target`: the number of its target. `rows`: the numbers of its records' rows."""

    target: int
    rows: Longs
    payload: memoryview
    codec: Codec
    base_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def record_count(self) -> int:
        return len(self.rows)

    def stamped(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> SplitBatch:
        """Return the whole batch, of a transaction."""
        header = build_header(
            self.payload,
            attributes=self.codec | TRANSACTIONAL_BIT,
            base_timestamp=self.base_timestamp_ms,
            max_timestamp=self.max_timestamp_ms,
            records_count=self.record_count,
            last_offset_delta=self.record_count - 1,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        return SplitBatch(memoryview(header), self.payload)


def encode_columns(
    columns: RecordColumns,
    targets: Longs,
    batch_bytes: Sequence[int],
    compression: Compression,
    *,
    first_row: int = 0,
) -> list[ColumnBatch]:
    """Return the batches of all rows: by target, and of a target in the order of its rows.

    `targets`: the number of the target of each row. `batch_bytes`: by target, the most bytes of records in a batch before they
    are compressed; a larger record has a batch of its own. `first_row`: the number of the first row.
    Raises ConfigError without the codec's library.
    """
    if not len(columns):
        return []
    order = np.arange(len(columns))
    if (np.diff(targets) < 0).any():
        order = np.argsort(targets, kind="stable")
        columns, targets = columns.take(order), targets[order]
    firsts = _batch_starts(targets, columns.record_sizes(), batch_bytes)
    counts = np.diff(firsts, append=len(columns))
    times = columns.timestamps_ms
    base_times, most_times = times[firsts], np.maximum.reduceat(times, firsts)
    data, starts = join_records(
        columns,
        timestamp_deltas=times - np.repeat(base_times, counts),
        offset_deltas=np.arange(len(columns)) - np.repeat(firsts, counts),
    )
    bounds = starts[np.append(firsts, len(columns))]
    return [
        ColumnBatch(
            target=target,
            rows=first_row + order[first : first + count],
            payload=memoryview(compress(data[start:end], compression.codec, compression.level)),
            codec=compression.codec,
            base_timestamp_ms=base_ms,
            max_timestamp_ms=most_ms,
        )
        for target, first, count, start, end, base_ms, most_ms in zip(
            targets[firsts].tolist(),
            firsts.tolist(),
            counts.tolist(),
            bounds[:-1].tolist(),
            bounds[1:].tolist(),
            base_times.tolist(),
            most_times.tolist(),
            strict=True,
        )
    ]


def _batch_starts(targets: Longs, sizes: Longs, batch_bytes: Sequence[int]) -> Longs:
    """Return the first row of each batch. The loop is over batches."""
    ends = np.cumsum(sizes)
    borders = np.append(np.flatnonzero(np.diff(targets)) + 1, len(targets)).tolist()
    firsts: list[int] = []
    row = 0
    for border in borders:
        most = batch_bytes[int(targets[row])]
        while row < border:
            firsts.append(row)
            before = int(ends[row] - sizes[row])
            row = min(max(int(np.searchsorted(ends, before + most, "right")), row + 1), border)
    return np.array(firsts, np.int64)
