"""Pure: what is compared: whole batches by what their headers prove, or single records by a digest.

An item says where it lies on its own side and, by the offset map, where its partner lies on the other. Two items are the
same when their contents are: of a batch everything that a copy keeps, of a record key, value, headers and timestamp.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire import CONTROL_BIT, DELETE_HORIZON_BIT, TRANSACTIONAL_BIT, crc32c, payload_crcs
from shallow_mirror.wire.records import Record

NOWHERE = -1
"""No row of the map, or no partner."""
NO_TIMESTAMP = -1


class Level(enum.IntEnum):
    BATCH = 0
    RECORD = 1
    DAMAGED = 2
    """A batch whose checksum or header does not hold: it equals nothing."""
    UNOPENED = 3
    """An intact batch that no reader can open: compared by its bytes."""


_CONTENT_BYTES = 40
ITEM = np.dtype(
    [
        ("offset", np.int64),
        ("end", np.int64),
        ("partner", np.int64),
        ("row", np.int64),
        ("records", np.int64),
        ("size_bytes", np.int64),
        ("content", np.uint64, (_CONTENT_BYTES // 8,)),
        ("level", np.uint8),
    ]
)
"""Offsets [offset, end) of its own side; `partner` is where `offset` leads on the other one, `row` which row says so."""

Items = npt.NDArray[np.void]

_BATCH_CONTENT = np.dtype(
    {
        "names": ["payload_crc", "size_bytes", "count", "last_offset_delta", "base_timestamp", "max_timestamp", "attributes"],
        "formats": ["u4", "i4", "i4", "i4", "i8", "i8", "i2"],
        "offsets": [0, 4, 8, 12, 16, 24, 32],
        "itemsize": _CONTENT_BYTES,
    }
)
_DIGESTED = np.dtype([("offset", ">i8"), ("partner", ">i8"), ("level", "u1"), ("content", "u1", (_CONTENT_BYTES,))])
DIGEST_BYTES = 32
_KEPT_ATTRIBUTES = ~(TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT)
_RECORD_CONTENT = struct.Struct("<qII24s")
_LENGTHS = struct.Struct("<ii")


def no_items() -> Items:
    return np.empty(0, ITEM)


def batch_items(
    headers: npt.NDArray[np.void], size_bytes: npt.NDArray[np.int64], *, compares_max_timestamp: bool = True
) -> Items:
    """Return an item per batch of `headers`, none of them damaged. `row` and `partner` are left open."""
    content = np.zeros(len(headers), _BATCH_CONTENT)
    content["payload_crc"] = payload_crcs(headers)
    content["size_bytes"] = size_bytes
    content["count"] = headers["records_count"]
    content["last_offset_delta"] = headers["last_offset_delta"]
    content["base_timestamp"] = headers["base_timestamp"]
    if compares_max_timestamp:
        # A broker writes -1 where all timestamps of a batch are below that.
        content["max_timestamp"] = np.maximum(headers["max_timestamp"], NO_TIMESTAMP)
    content["attributes"] = headers["attributes"] & _KEPT_ATTRIBUTES
    items = np.zeros(len(headers), ITEM)
    items["offset"] = headers["base_offset"]
    items["end"] = headers["base_offset"] + headers["last_offset_delta"] + 1
    items["partner"] = items["row"] = NOWHERE
    items["records"], items["size_bytes"] = headers["records_count"], size_bytes
    items["content"] = content.view(np.uint64).reshape(-1, _CONTENT_BYTES // 8)
    return items


class RecordItems:
    """Collects an item per record. Of many batches together: arrays of single records would cost more than reading them."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._contents = bytearray()

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, record: Record) -> None:
        self._offsets.append(record.offset)
        self._contents += record_content(record)

    def take(self) -> Items:
        """All since the last time. `row` and `partner` are left open."""
        items = np.zeros(len(self), ITEM)
        items["offset"] = self._offsets
        items["end"] = items["offset"] + 1
        items["partner"] = items["row"] = NOWHERE
        items["records"], items["level"] = 1, Level.RECORD
        items["content"] = np.frombuffer(bytes(self._contents), np.uint64).reshape(-1, _CONTENT_BYTES // 8)
        self._offsets, self._contents = [], bytearray()
        return items


def unopened(batch: Items, offset: int) -> Items:
    """Return the item of the rest, from `offset` on, of a batch that cannot be opened. `batch`: its item."""
    items = batch.copy()
    items["offset"], items["records"], items["level"] = offset, items["end"] - offset, Level.UNOPENED
    return items


def damaged_item(offset: int, end: int, size_bytes: int = 0) -> Items:
    items = np.zeros(1, ITEM)
    items["offset"], items["end"], items["size_bytes"] = offset, end, size_bytes
    items["records"], items["level"] = end - offset, Level.DAMAGED
    items["partner"] = items["row"] = NOWHERE
    return items


def record_content(record: Record) -> bytes:
    """Timestamp, checksums of key and value (they show which differs), and a digest of all three parts with their lengths."""
    key, value = record.key, record.value
    parts: list[bytes | memoryview] = [_LENGTHS.pack(_length(key), _length(value)), key or b"", value or b""]
    for name, content in record.headers:
        parts += (_LENGTHS.pack(len(name), _length(content)), name, content or b"")
    digest = hashlib.blake2b(b"".join(parts), digest_size=24).digest()
    return _RECORD_CONTENT.pack(record.timestamp_ms, _checksum(key), _checksum(value), digest)


def _length(part: memoryview | None) -> int:
    return -1 if part is None else len(part)


def _checksum(part: memoryview | None) -> int:
    return 0xFFFFFFFF if part is None else crc32c(part)


def difference_of_records(source: npt.NDArray[np.uint64], target: npt.NDArray[np.uint64]) -> str:
    """Return the difference between the contents of two records, as the end of a sentence."""
    source_content, target_content = _RECORD_CONTENT.unpack(source.tobytes()), _RECORD_CONTENT.unpack(target.tobytes())
    parts: list[str] = []
    if source_content[1] != target_content[1]:
        parts.append("the key differs")
    if source_content[2] != target_content[2]:
        parts.append("the value differs")
    if source_content[3] != target_content[3] and not parts:
        parts.append("the headers differ")
    if source_content[0] != target_content[0]:
        parts.append(f"the timestamp differs by {target_content[0] - source_content[0]:+d} ms")
    return ", ".join(parts)


def same_content(source: Items, target: Items) -> npt.NDArray[np.bool_]:
    """Pairwise, for items of equal number. Damaged ones equal nothing."""
    same = (source["content"] == target["content"]).all(axis=1) & (source["level"] == target["level"])
    return np.asarray(same & (source["level"] != Level.DAMAGED), np.bool_)


def digest_of(items: Items) -> int:
    """Return the sum of a BLAKE2b digest (256 bits) of each item, not reduced; of source items with a partner.

    It depends on offsets at the source, offsets at the target, and contents, and not on the order of the items: parts of a
    partition can be digested alone and added.
    """
    digested = np.empty(len(items), _DIGESTED)
    digested["offset"], digested["partner"], digested["level"] = items["offset"], items["partner"], items["level"]
    digested["content"] = np.ascontiguousarray(items["content"]).view(np.uint8).reshape(-1, _CONTENT_BYTES)
    buffer, size = digested.tobytes(), _DIGESTED.itemsize
    digests = (hashlib.blake2b(buffer[pos : pos + size], digest_size=DIGEST_BYTES) for pos in range(0, len(buffer), size))
    return sum(int.from_bytes(digest.digest()) for digest in digests)


def joined(items: Sequence[Items]) -> Items:
    return np.concatenate(items) if items else no_items()
