"""Pure: the number of records that a slot got, and their checksum, to recognise the same records in a replay."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shallow_mirror.wire.batches.crc import crc32c
from shallow_mirror.wire.columns.record_columns import binary_buffers, byte_lengths

_NULL = np.iinfo(np.int64).min


class ContentDigest:
    """Of Arrow batches of one schema, in order, however the rows are divided into batches.

    Columns are strings, numbers, times, or lists of structs of strings.
    """

    def __init__(self) -> None:
        self.record_count = 0
        self._checksums: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        self.record_count += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._add_column(name, column)

    def crc32c(self) -> int:
        """Return one checksum of all columns: 32 bits."""
        return crc32c(repr(sorted(self._checksums.items())).encode())

    def _add_column(self, name: str, column: pa.Array) -> None:
        if pa.types.is_list(column.type):
            self._add_bytes(f"{name}.count", column.value_lengths().fill_null(-1).cast(pa.int64()).to_numpy())
            flat = column.flatten()
            for index, field in enumerate(flat.type):
                self._add_column(f"{name}.{field.name}", flat.field(index))
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            text = column.cast(pa.binary())
            starts, data = binary_buffers(text)
            self._add_bytes(f"{name}.length", byte_lengths(text))  # a null differs from an empty one
            self._add_bytes(name, data[int(starts[0]) : int(starts[-1])])
        else:
            self._add_bytes(name, column.cast(pa.int64()).fill_null(_NULL).to_numpy())

    def _add_bytes(self, name: str, data: np.ndarray[tuple[int], np.dtype[np.generic]]) -> None:
        self._checksums[name] = crc32c(np.ascontiguousarray(data).data.cast("B"), self._checksums.get(name, 0))
