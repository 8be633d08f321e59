"""Pure: whether it is known where a batch ends that cannot be copied: only then may it be set aside, and the rest goes on."""

from __future__ import annotations

from typing import Any

from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.crc import verify_crc
from shallow_mirror.wire.batches.header import CONTROL_BIT


def has_an_end(header: Any) -> bool:
    """Whether count and last offset delta agree, so that they may be believed although something is damaged."""
    return bool(int(header["records_count"]) == int(header["last_offset_delta"]) + 1 > 0)


def may_be_set_aside(index: BatchIndex, i: int, batch: memoryview) -> bool:
    """`batch`: batch `i` of `index` whole, before or after it was restamped: a patched checksum fails where the one before did.

    Never a control batch: what is behind an unreadable marker may be judged wrongly.
    """
    header = index.headers[i]
    delta = int(header["last_offset_delta"])
    if delta < 0 or header["attributes"] & CONTROL_BIT:
        return False
    is_followed = i + 1 < len(index) and int(index.headers["base_offset"][i + 1]) == int(header["base_offset"]) + delta + 1
    return has_an_end(header) or is_followed or verify_crc(batch)
