"""Pure: columns of records as Arrow arrays, and the bytes of whole records made of them.

A record is the concatenation of a head (varints), its key, a length, its value and its headers. The varints of all records are
computed as arrays; Arrow concatenates them with the columns in native code. Per record there is no Python object.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.wire.records.varints import Longs, Octets, put_varints, varint_sizes

_ATTRIBUTES_BYTES = 1
_NO_HEADERS = pa.scalar(b"\x00", pa.binary())
"""The number of headers, 0."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """Records, a row each. None: no record has a key, or a header.

    `headers`: a list for each record, of structs of a name that is not null and a value.
    """

    keys: pa.BinaryArray | None
    values: pa.BinaryArray
    headers: pa.ListArray | None
    timestamps_ms: Longs

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Longs) -> RecordColumns:
        """Return these rows, in this order."""
        indices = pa.array(rows)
        return RecordColumns(
            None if self.keys is None else self.keys.take(indices),
            self.values.take(indices),
            None if self.headers is None else self.headers.take(indices),
            self.timestamps_ms[rows],
        )

    def record_sizes(self) -> Longs:
        """Return the largest size that each record can have, whatever its place in a batch: int64[n]."""
        sizes = np.maximum(byte_lengths(self.values), 0) + _MOST_HEAD_BYTES
        if self.keys is not None:
            sizes += np.maximum(byte_lengths(self.keys), 0)
        if self.headers is not None:
            sizes += byte_lengths(header_bytes(self.headers))
        return sizes


_MOST_HEAD_BYTES = 5 + _ATTRIBUTES_BYTES + 10 + 5 + 5 + 5 + 5
"""Length, attributes, timestamp and offset delta, the lengths of key and value, the number of headers."""


def join_records(columns: RecordColumns, timestamp_deltas: Longs, offset_deltas: Longs) -> tuple[memoryview, Longs]:
    """Return the bytes of all records, one behind the other, and the begin of each, with the end of the last one."""
    value_lengths = byte_lengths(columns.values)
    value_sizes = varint_sizes(value_lengths)
    key_lengths = np.full(len(columns), -1, np.int64) if columns.keys is None else byte_lengths(columns.keys)
    fields = [timestamp_deltas, offset_deltas, key_lengths]
    sizes = [varint_sizes(field) for field in fields]
    headers = None if columns.headers is None else header_bytes(columns.headers)
    body = _ATTRIBUTES_BYTES + sum(sizes) + np.maximum(key_lengths, 0) + value_sizes + np.maximum(value_lengths, 0)
    body = body + (1 if headers is None else byte_lengths(headers))
    head = [body, None, *fields]
    head_sizes = [varint_sizes(body), None, *sizes]
    parts: list[pa.Array | pa.Scalar]
    if columns.keys is None:  # the length of the value follows that of the key
        parts = [_joined_varints([*head, value_lengths], [*head_sizes, value_sizes])]
    else:
        parts = [_joined_varints(head, head_sizes), columns.keys, _joined_varints([value_lengths], [value_sizes])]
    parts += [columns.values, _NO_HEADERS if headers is None else headers]
    starts, data = binary_buffers(_concatenated(parts))
    return data.data, starts


def header_bytes(headers: pa.ListArray) -> pa.BinaryArray:
    """Return the headers of each record as they are in it, with their number in front. Null: none."""
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.list_flatten(headers)
    names, values = (_as_binary(pc.struct_field(flat, index)) for index in (0, 1))
    name_lengths, value_lengths = byte_lengths(names), byte_lengths(values)
    starts, data = binary_buffers(
        _concatenated(
            [
                _joined_varints([name_lengths], [varint_sizes(name_lengths)]),
                names,
                _joined_varints([value_lengths], [varint_sizes(value_lengths)]),
                values,
            ]
        )
    )
    # The headers of a record follow each other.
    ends = starts[np.append(0, np.cumsum(counts))]
    return _concatenated([_joined_varints([counts], [varint_sizes(counts)]), _binary_array(ends, data)])


def _as_binary(array: pa.Array) -> pa.BinaryArray:
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def byte_lengths(array: pa.BinaryArray) -> Longs:
    """Return the length of each byte string, -1 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(array), -1).to_numpy(zero_copy_only=False), np.int64)


def binary_buffers(array: pa.BinaryArray) -> tuple[Longs, Octets]:
    """Return the begin of each byte string, with the end of the last one, and the bytes that these are positions in."""
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1] if len(array) else np.zeros(1)
    return starts.astype(np.int64), np.frombuffer(b"" if data is None else data, np.uint8)


def _binary_array(starts: Longs, data: Octets) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(starts) - 1, buffers)


def _joined_varints(columns: list[Longs | None], sizes: list[Longs | None]) -> pa.BinaryArray:
    """Return the numbers of each row one behind the other. None: a byte 0."""
    widths = [1 if size is None else size for size in sizes]
    rows = next(len(column) for column in columns if column is not None)
    ends: Longs = np.cumsum(np.broadcast_to(sum(widths), rows), dtype=np.int64)
    out = np.zeros(int(ends[-1]) if rows else 0, np.uint8)
    starts = np.append(np.int64(0), ends)
    at: Longs = starts[:-1]
    for column, size, width in zip(columns, sizes, widths, strict=True):
        at = at + width
        if column is not None and size is not None:
            put_varints(out, at, column, size)
    return _binary_array(starts, out)


def _concatenated(parts: list[pa.Array | pa.Scalar]) -> pa.BinaryArray:
    separator = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(*parts, separator, null_handling="replace", null_replacement=b"")
