"""Test support: batches rebuilt by each codec, and their records."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fakes import record_rules
from tests.support.record_encoders import (
    ENOUGH,
    A,
    plain,
)

from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy
from shallow_mirror.wire.batches import index_batches, restamp
from shallow_mirror.wire.records import open_batch
from shallow_mirror.wire.records.rebuild import Rebuilt, rebuild

CONFIGS = {**record_rules.DEFAULT_CONFIGS, "message.timestamp.after.max.ms": str((1 << 63) - 1)}


def limits(max_message_bytes: int = ENOUGH, policy: LogAppendTimePolicy = LogAppendTimePolicy.KEEP) -> BatchLimits:
    return BatchLimits(max_message_bytes=max_message_bytes, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=policy)


def rebuilt(raw: bytes, *, position: int = 0, max_opened_bytes: int = ENOUGH, **changes: Any) -> Rebuilt:
    return rebuild(memoryview(raw), A, position=position, limits=limits(**changes), max_opened_bytes=max_opened_bytes)


def contents(raw: bytes) -> list[tuple[Any, ...]]:
    """Of each record all that a copy keeps."""
    return [
        (
            record.timestamp_ms,
            plain(record.key),
            plain(record.value),
            [(bytes(name), plain(text)) for name, text in record.headers],
        )
        for record in open_batch(memoryview(raw), A, max_bytes=ENOUGH)
    ]


def all_contents(made: Rebuilt) -> list[tuple[Any, ...]]:
    return [content for raw in made.batches for content in contents(raw)]


def offsets_of(raw: bytes) -> list[int]:
    return [record.offset for record in open_batch(memoryview(raw), A, max_bytes=ENOUGH)]


def is_accepted(raw: bytes) -> bool:
    """By every rule of a real broker, after the producer of a slot was put in."""
    sent = memoryview(bytearray(raw))
    restamp(sent, index_batches(sent), np.array([0]), producer_id=7, producer_epoch=1, first_sequence=3)
    record_rules.check_batch(bytes(sent), CONFIGS, now_ms=0)
    header = record_rules.header_of(bytes(sent))
    assert offsets_of(raw) == list(range(header.records_count))
    return (header.attributes & ~7, header.producer_id, header.base_sequence, header.base_offset) == (0x10, 7, 3, 0)


def header(raw: bytes) -> record_rules.Header:
    return record_rules.header_of(raw)
