"""Pure: the committed offsets in many opened batches of `__consumer_offsets`, as columns.

Of a value only the offset is read, and whether there is metadata: nearly all are of version 3 or 4 and have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.group_log.offset_commits import (
    NEWEST_VALUE,
    OFFSET_BYTES,
    OFFSET_COMMIT_TYPES,
    parse_committed_offset,
)
from shallow_mirror.wire.group_log.record_fields import Fields, read_fields
from shallow_mirror.wire.records.unpacked_batch import UnpackedBatch

CommitRow = tuple[bytes, int, int, int, bytes | None]
"""Key, offset in the log, time in ms, committed offset, value: as in `CommitColumns`."""

_TYPE = np.dtype(">i2")
_FIELDS_OF_VALUE = {
    "version": (">i2", 0),
    "offset": (">i8", 2),
    "metadata_bytes": (">i2", 14),
    "compact_metadata_bytes": ("u1", 14),
    "tag_count": ("u1", 23),
    "tag": ("u1", 24),
    "tag_bytes": ("u1", 25),
}
_VALUE = np.dtype(
    {
        "names": list(_FIELDS_OF_VALUE),
        "formats": [layout for layout, _ in _FIELDS_OF_VALUE.values()],
        "offsets": [start for _, start in _FIELDS_OF_VALUE.values()],
        "itemsize": 26,
    }
)
"""Where fields begin in a value without metadata: version and offset of any version, `metadata_bytes` of version 3, those behind
it of version 4."""
_VALUE_BYTES = 24
"""Without metadata and tagged fields, of version 3 and 4."""
_TOPIC_ID_TAG, _TOPIC_ID_BYTES = 0, 16
_VALUE_WITH_TOPIC_ID_BYTES = _VALUE_BYTES + 2 + _TOPIC_ID_BYTES


@dataclass(frozen=True, slots=True)
class CommitColumns:
    """Records of committed offsets in the order of the log. All lists but `batch_ends` have an element for each."""

    keys: list[bytes]
    logged_at: list[int]
    at_ms: list[int]
    offsets: list[int]
    """Below 0: there is none; of a tombstone -1."""
    values: list[bytes | None]
    """As they were logged, where there is metadata; None: there is none."""
    batch_ends: list[int]
    """How many there are up to the end of each batch."""
    other_count: int
    """Records of other types, which were left out."""

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, start: int, end: int) -> Iterator[CommitRow]:
        """Yield the rows [start, end)."""
        columns = (self.keys, self.logged_at, self.at_ms, self.offsets, self.values)
        return zip(*(column[start:end] for column in columns), strict=True)


def read_commits(batches: Sequence[UnpackedBatch]) -> CommitColumns:
    """Read what is a committed offset.

    Raises as `UnpackedBatch.records`, UnknownCommitError, and WireError where a value is too short for an offset.
    """
    keys: list[bytes | None] = []
    logged_at: list[int] = []
    at_ms: list[int] = []
    offsets: list[int] = []
    values: list[bytes | None] = []
    are_commits = [np.zeros(0, np.bool_)]
    for records in read_fields(batches):
        types = _structures(records.block, records.keys.start, _TYPE)
        is_commit = (records.keys.length >= _TYPE.itemsize) & np.isin(types, list(OFFSET_COMMIT_TYPES))
        rows = np.flatnonzero(is_commit)
        committed, with_metadata = _read_values(records.block, records.values.take(rows))
        keys += records.keys.take(rows).slices(records.block)
        logged_at += records.offsets[rows].tolist()
        at_ms += records.timestamps_ms[rows].tolist()
        offsets += committed
        values += with_metadata
        are_commits.append(is_commit)
    counts_before = np.append(0, np.cumsum(np.concatenate(are_commits)))
    record_ends = np.cumsum([batch.header["records_count"] for batch in batches])
    return CommitColumns(
        keys=[key for key in keys if key is not None],
        logged_at=logged_at,
        at_ms=at_ms,
        offsets=offsets,
        values=values,
        batch_ends=counts_before[record_ends].tolist() if batches else [],
        other_count=len(counts_before) - 1 - len(keys),
    )


def _read_values(block: bytes, values: Fields) -> tuple[list[int], list[bytes | None]]:
    """Return the offsets, and the values of those with metadata."""
    read, is_null = _structures(block, values.start, _VALUE), values.length < 0
    is_known = (values.length >= OFFSET_BYTES) & (read["version"] >= 0) & (read["version"] <= NEWEST_VALUE)
    if not (is_known | is_null).all():
        (unknown,) = values.take(np.flatnonzero(~is_known & ~is_null)[:1]).slices(block)
        assert unknown is not None
        parse_committed_offset(unknown)  # raises
    with_metadata = Fields(values.start, np.where(_have_no_metadata(read, values.length), -1, values.length))
    return np.where(is_null, -1, read["offset"]).tolist(), with_metadata.slices(block)


def _have_no_metadata(read: npt.NDArray[np.void], length: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return whether each value is one of version 3 or 4 without metadata, and without tagged fields but the topic id."""
    has_topic_id = (
        (length == _VALUE_WITH_TOPIC_ID_BYTES)
        & (read["tag_count"] == 1)
        & (read["tag"] == _TOPIC_ID_TAG)
        & (read["tag_bytes"] == _TOPIC_ID_BYTES)
    )
    has_no_tags = (length == _VALUE_BYTES) & (read["tag_count"] == 0)
    is_plain_3 = (read["version"] == 3) & (length == _VALUE_BYTES) & (read["metadata_bytes"] == 0)
    is_plain_4 = (read["version"] == 4) & (read["compact_metadata_bytes"] == 1) & (has_no_tags | has_topic_id)
    return np.asarray(is_plain_3 | is_plain_4, np.bool_)


def _structures(block: bytes, starts: npt.NDArray[np.int64], dtype: np.dtype[np.void] | np.dtype[np.int16]) -> npt.NDArray[Any]:
    """Return a structure from each start on; where it would exceed the block, its last bytes are those of the block again."""
    octets = np.frombuffer(block, np.uint8)
    return octets.take(starts[:, None] + np.arange(dtype.itemsize), mode="clip").view(dtype)[:, 0]
