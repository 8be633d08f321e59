"""Records of `__consumer_offsets` for tests, field by field; the oracle for what `wire.group_log` reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.support.record_batches import batch, record

from shallow_mirror.wire.protocol.primitives import NO_TAGS, compact_string, string, uvarint

TRANSACTIONAL = 0x10


def commit_key(group: str, topic: str, partition: int, record_type: int = 1) -> bytes:
    return struct.pack(">h", record_type) + string(group) + string(topic) + struct.pack(">i", partition)


def commit_value(
    offset: int,
    metadata: str = "",
    at_ms: int = 1_000,
    *,
    version: int = 3,
    leader_epoch: int = -1,
    expires_at_ms: int = -1,
    tagged: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """`expires_at_ms` is of version 1 only, `leader_epoch` of versions from 3 on, `tagged` of versions from 4 on."""
    out = struct.pack(">hq", version, offset)
    out += struct.pack(">i", leader_epoch) if version >= 3 else b""
    out += compact_string(metadata) if version >= 4 else string(metadata)
    out += struct.pack(">q", at_ms)
    out += struct.pack(">q", expires_at_ms) if version == 1 else b""
    if version < 4:
        return out
    tags = b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tagged)
    return out + (uvarint(len(tagged)) + tags if tagged else NO_TAGS)


def commit_batch(
    base_offset: int, records: Sequence[tuple[bytes, bytes | None]], *, producer_id: int = -1, timestamp: int = 1_000
) -> bytes:
    """Of a transaction if `producer_id` is not -1."""
    payload = b"".join(record(delta, key, value) for delta, (key, value) in enumerate(records))
    return batch(
        base_offset,
        len(records),
        payload=payload,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id == -1 else 0,
        attributes=0 if producer_id == -1 else TRANSACTIONAL,
        timestamp=timestamp,
    )
