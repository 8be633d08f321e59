"""Pure: whether the end of a batch that cannot be copied is certain: only then may it be quarantined, and the rest be copied."""

from __future__ import annotations

from typing import Any

from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.crc import verify_crc
from shallow_mirror.wire.batches.header import CONTROL_BIT


def has_an_end(header: Any) -> bool:
    """Return whether count and last offset delta agree, so that they can be trusted although something is damaged."""
    return bool(int(header["records_count"]) == int(header["last_offset_delta"]) + 1 > 0)


def can_be_quarantined(index: BatchIndex, i: int, batch: memoryview) -> bool:
    """Return whether batch `i` of `index` may be quarantined.

    `batch`: all its bytes, before or after it was restamped: a patched checksum fails where the one before did.
    """
    header = index.headers[i]
    delta = int(header["last_offset_delta"])
    # Never a control batch: without its marker, the batches behind it may be taken for aborted or committed wrongly.
    if delta < 0 or header["attributes"] & CONTROL_BIT:
        return False
    is_followed = i + 1 < len(index) and int(index.headers["base_offset"][i + 1]) == int(header["base_offset"]) + delta + 1
    return has_an_end(header) or is_followed or verify_crc(batch)
