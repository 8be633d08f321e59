"""Executor: fetched record batches as Arrow rows (the columns of `kafka-batches`), and rows as batches again.

With `keep` ALL the rows of a range cover its offsets without hole: what holds no batch is a row of kind gap without a
payload. Payloads are not copied on the way out: the column is a view of the receive buffer until the next answer.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.broker.fetch.indexed_partition import IndexedPartition
from shallow_mirror.types import BatchLimits, SegmentKind, SourcePartition
from shallow_mirror.wire import CODEC_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, Codec
from shallow_mirror.wire.batches import Admission, Verdict, admit, kind_of

ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("base_offset", pa.int64(), nullable=False),
        pa.field("last_offset", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("verdict", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("size_bytes", pa.int32()),
        pa.field("records_count", pa.int32()),
        pa.field("codec", pa.string()),
        pa.field("timestamp_type", pa.string()),
        pa.field("is_transactional", pa.bool_()),
        pa.field("is_control", pa.bool_()),
        pa.field("has_delete_horizon", pa.bool_()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("magic", pa.int32()),
        pa.field("crc", pa.int64()),
        pa.field("last_offset_delta", pa.int32()),
        pa.field("base_timestamp_ms", pa.int64()),
        pa.field("max_timestamp_ms", pa.int64()),
        pa.field("producer_id", pa.int64()),
        pa.field("producer_epoch", pa.int32()),
        pa.field("base_sequence", pa.int32()),
        pa.field("coordinator_epoch", pa.int32()),
        pa.field("payload", pa.binary()),
    ]
)

_SPARK_TYPES = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long", pa.bool_(): "boolean", pa.binary(): "binary"}
SPARK_SCHEMA = ", ".join(
    f"{field.name} {_SPARK_TYPES[field.type]}{'' if field.nullable else ' not null'}" for field in ARROW_SCHEMA
)

FAILED = "failed"
"""Kind of a row that carries a pickled `MirrorError` instead of a batch; only the mirror asks for such rows."""

_HEADER_COLUMNS = {
    "records_count": "records_count",
    "leader_epoch": "partition_leader_epoch",
    "magic": "magic",
    "crc": "crc",
    "last_offset_delta": "last_offset_delta",
    "base_timestamp_ms": "base_timestamp",
    "max_timestamp_ms": "max_timestamp",
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "base_sequence": "base_sequence",
}
_FLAGS = {"is_transactional": TRANSACTIONAL_BIT, "is_control": CONTROL_BIT, "has_delete_horizon": DELETE_HORIZON_BIT}
_NOT_OURS = (Verdict.DROP_BELOW, Verdict.BEYOND)


class Keep(enum.Enum):
    COMMITTED = "committed"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class _Row:
    """Batch `index` of the answer, or offsets [start, end) without one."""

    kind: SegmentKind
    start: int
    end: int
    index: int | None = None


class RangeRows:
    """Follows one source partition through [start, end) and makes its rows.

    A batch belongs to the range that holds its base offset. One that only reaches into `start` was the range's before,
    unless records in front of it were deleted: then the log starts inside it. Without `has_holes` only batches have rows.
    """

    def __init__(
        self,
        source: SourcePartition,
        start: int,
        end: int,
        *,
        limits: BatchLimits,
        keep: Keep,
        has_holes: bool = True,
    ) -> None:
        self.source, self.position, self._end, self._limits, self._keep = source, start, end, limits, keep
        self._has_holes = has_holes

    def of_answer(self, fetched: IndexedPartition) -> Iterator[pa.RecordBatch]:
        """Rows of the batches of one Fetch answer, valid until the reader is resumed."""
        index = fetched.index
        base, last = index.headers["base_offset"], index.last_offset
        is_straddling = (base < self.position) & (last >= self.position)
        if is_straddling.any() and fetched.log_start_offset < self.position:
            self.position = int(last[is_straddling][0]) + 1
        admission = admit(
            index,
            fetched.records,
            topic_partition=fetched.topic_partition,
            position=self.position,
            range_end=self._end,
            aborted=fetched.aborted,
            limits=self._limits,
        )
        rows: list[_Row] = []
        for i in np.flatnonzero(~np.isin(admission.verdicts, _NOT_OURS)).tolist():
            rows += self._gap_up_to(int(base[i]))
            rows.append(_Row(kind_of(admission, i), int(base[i]), int(last[i]) + 1, i))
            self.position = int(last[i]) + 1
        self.position = max(self.position, admission.next_position)
        if self._keep is Keep.COMMITTED:
            rows = [row for row in rows if row.kind is SegmentKind.DATA]
        for run in _contiguous(rows, index.pos, index.size_bytes):
            yield self._arrow(run, fetched, admission)

    def up_to(self, offset: int, kind: SegmentKind = SegmentKind.GAP) -> Iterator[pa.RecordBatch]:
        """One row for offsets behind the last batch, up to `offset`, that hold none."""
        rows = self._gap_up_to(offset, kind)
        self.position = max(self.position, offset)
        if rows and self._keep is Keep.ALL:
            yield self._arrow(rows, None, None)

    def _gap_up_to(self, offset: int, kind: SegmentKind = SegmentKind.GAP) -> list[_Row]:
        return [_Row(kind, self.position, offset)] if self._has_holes and offset > self.position else []

    def _arrow(self, rows: Sequence[_Row], fetched: IndexedPartition | None, admission: Admission | None) -> pa.RecordBatch:
        columns: dict[str, Any] = {
            "topic": pa.array([self.source.topic] * len(rows), pa.string()),
            "topic_id": pa.array([self.source.topic_id] * len(rows), pa.string()),
            "partition": pa.array([self.source.partition] * len(rows), pa.int32()),
            "base_offset": pa.array([row.start for row in rows], pa.int64()),
            "last_offset": pa.array([row.end - 1 for row in rows], pa.int64()),
            "kind": pa.array([str(row.kind) for row in rows], pa.string()),
        }
        if fetched is not None and admission is not None:
            columns |= _batch_columns(rows, fetched, admission)
        arrays = [columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type) for field in ARROW_SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def failed_row(source: SourcePartition, offset: int, pickled: bytes) -> pa.RecordBatch:
    columns = {
        "topic": source.topic,
        "topic_id": source.topic_id,
        "partition": source.partition,
        "base_offset": offset,
        "last_offset": offset - 1,
        "kind": FAILED,
        "payload": pickled,
    }
    arrays = [pa.array([columns.get(field.name)], field.type) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _contiguous(rows: Sequence[_Row], pos: npt.NDArray[np.int64], size_bytes: npt.NDArray[np.int64]) -> Iterator[Sequence[_Row]]:
    """Cut at each batch of the buffer that is left out: a column of payloads is one run of bytes."""
    start, reached = 0, -1
    for at, row in enumerate(rows):
        if row.index is None:
            continue
        if reached >= 0 and int(pos[row.index]) != reached:
            yield rows[start:at]
            start = at
        reached = int(pos[row.index] + size_bytes[row.index])
    if rows[start:]:
        yield rows[start:]


def _batch_columns(rows: Sequence[_Row], fetched: IndexedPartition, admission: Admission) -> dict[str, pa.Array]:
    chosen = np.array([-1 if row.index is None else row.index for row in rows])
    is_hole = chosen < 0
    at = np.where(is_hole, 0, chosen)
    headers, attributes = fetched.index.headers[at], fetched.index.headers["attributes"][at]
    sizes = fetched.index.size_bytes[at]
    reasons = {
        verdict.index: ". ".join(filter(None, (verdict.rule, verdict.remedy)))
        for verdict in (*admission.refusals, *admission.rebuilds)
    }
    columns = {
        name: pa.array(headers[field].astype(ARROW_SCHEMA.field(name).type.to_pandas_dtype()), mask=is_hole)
        for name, field in _HEADER_COLUMNS.items()
    }
    columns |= {name: pa.array((attributes & bit) != 0, mask=is_hole) for name, bit in _FLAGS.items()}
    columns["size_bytes"] = pa.array(sizes.astype(np.int32), mask=is_hole)
    columns["codec"] = pa.array([_codec(value) for value in attributes.tolist()], pa.string(), mask=is_hole)
    is_append_time = (attributes & LOG_APPEND_TIME_BIT) != 0
    columns["timestamp_type"] = pa.array(np.where(is_append_time, "LogAppendTime", "CreateTime"), pa.string(), mask=is_hole)
    verdicts = [None if i < 0 else Verdict(int(admission.verdicts[i])).name.lower() for i in chosen.tolist()]
    columns["verdict"] = pa.array(verdicts, pa.string())
    columns["reason"] = pa.array([reasons.get(i) for i in chosen.tolist()], pa.string())
    epochs = [marker.coordinator_epoch if (marker := admission.markers.get(i)) else None for i in chosen.tolist()]
    columns["coordinator_epoch"] = pa.array(epochs, pa.int32())
    columns["payload"] = _payloads(fetched, chosen, is_hole)
    return columns


def _payloads(fetched: IndexedPartition, chosen: npt.NDArray[np.int64], is_hole: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a view of the response: offsets into it, holes of no length."""
    index = fetched.index
    first = int(index.pos[chosen[~is_hole][0]])
    sizes = np.where(is_hole, 0, index.size_bytes[np.where(is_hole, 0, chosen)])
    offsets = (first + np.concatenate(([0], np.cumsum(sizes)))).astype(np.int32)
    valid = np.packbits(~is_hole, bitorder="little").tobytes()
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets.tobytes()), pa.py_buffer(fetched.records)]
    return pa.Array.from_buffers(pa.binary(), len(chosen), buffers)


def _codec(attributes: int) -> str:
    codec = attributes & CODEC_MASK
    return Codec(codec).name.lower() if codec in list(Codec) else f"unknown ({codec})"


@dataclass(frozen=True, slots=True)
class RowRun:
    """Neighbouring rows of one source partition that cover [start, end). `records` is read-only, whole batches.

    `aborted` says the same as a Fetch answer's list does: (producer id, first offset).
    """

    source: SourcePartition
    start: int
    end: int
    records: memoryview
    aborted: tuple[tuple[int, int], ...]
    expired_until: int = 0
    """Retention deleted the records before this offset."""


def split_failures(arrow_batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[bytes]]:
    """Return the rows of batches, and the contents of rows of kind FAILED. Spark may put both into one arrow batch."""
    is_failure = pc.equal(arrow_batch.column("kind"), FAILED)
    if not pc.any(is_failure).as_py():
        return arrow_batch, []
    failed = arrow_batch.filter(is_failure).column("payload").to_pylist()
    return arrow_batch.filter(pc.invert(is_failure)), [bytes(pickled) for pickled in failed]


def parse_rows(arrow_batch: pa.RecordBatch) -> Iterator[RowRun]:
    """Rows made with `Keep.ALL`, in the order they were made: a run ends at the begin of another source partition."""
    payload = arrow_batch.column("payload")
    _, offset_buffer, data = payload.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[payload.offset : payload.offset + len(payload) + 1].tolist()
    bytes_of = memoryview(data) if data is not None else memoryview(b"")
    names = ("topic", "topic_id", "partition", "base_offset", "last_offset", "kind", "producer_id")
    columns = [arrow_batch.column(name).to_pylist() for name in names]
    keys = list(zip(*columns[:3], strict=True))
    bases, lasts, kinds, producers = columns[3:]
    first = 0
    for row in range(1, len(keys) + 1):
        if row < len(keys) and keys[row] == keys[first]:
            continue
        part = slice(first, row)
        yield RowRun(
            SourcePartition(*keys[first]),
            bases[first],
            lasts[row - 1] + 1,
            bytes_of[offsets[first] : offsets[row]],
            _aborted(kinds[part], producers[part], bases[part]),
            max(
                (last + 1 for kind, last in zip(kinds[part], lasts[part], strict=True) if kind == SegmentKind.EXPIRED),
                default=0,
            ),
        )
        first = row


def _aborted(kinds: Sequence[str], producers: Sequence[int | None], bases: Sequence[int]) -> tuple[tuple[int, int], ...]:
    listed: list[tuple[int, int]] = []
    active: set[int] = set()
    for kind, producer, base in zip(kinds, producers, bases, strict=True):
        if producer is None:
            continue
        if kind == SegmentKind.ABORT:
            active.discard(producer)
        elif kind == SegmentKind.ABORTED and producer not in active:
            active.add(producer)
            listed.append((producer, base))
    return tuple(listed)
