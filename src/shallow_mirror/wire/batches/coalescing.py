"""Pure: which batches are so small that they are coalesced with their neighbours, by their headers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shallow_mirror.types import BatchLimits
from shallow_mirror.wire.batches.admission import SENT
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, CODEC_MASK, Codec

Bools = npt.NDArray[np.bool_]

RULE = "small batches are combined (write.coalesce_bytes)"

MOST_RECORDS = 1 << 14
"""The limit of records in a batch that is rewritten together with others, and in a coalesced one."""

_SMALL_SHARE = 8
"""Only batches of at most this share of the limit (1/8) are opened: coalescing two saves little."""

CHEAPER_UP_TO_BYTES = {Codec.NONE: 12_000, Codec.LZ4: 5_000}
"""Coalescing saves more CPU, of mirror and target broker together, than it takes, up to this median size of batches on the wire.
Other codecs take more to compress than small batches cost. Measured: docs/how-to/coalescing.md."""

CHEAPER_FROM_BATCHES = 8
"""Fewer small batches in a response are not opened where only savings count."""


def most_bytes(limits: BatchLimits) -> int:
    """Return how many bytes the records of a coalesced batch may take before compression; 0: nothing is coalesced."""
    return max(0, min(limits.coalesce_bytes or 0, limits.max_message_bytes - BATCH_HEADER_BYTES))


def find_small(index: BatchIndex, verdicts: npt.NDArray[np.int8], limits: BatchLimits) -> Bools:
    """Return which batches are small and have a small neighbour of the same codec among those that are sent.

    Whether they are coalesced also depends on their size when they are opened.
    """
    may_join = np.zeros(len(index), np.bool_)
    sent = np.flatnonzero(np.isin(verdicts, SENT)) if most_bytes(limits) else np.empty(0, np.int64)
    if len(sent) < 2:
        return may_join
    headers = index.headers[sent]
    is_small = (index.size_bytes[sent] * _SMALL_SHARE <= most_bytes(limits)) & (headers["records_count"] <= MOST_RECORDS)
    codecs = headers["attributes"] & CODEC_MASK
    if limits.coalesces_where_cheaper:
        is_small &= _are_cheaper_coalesced(index.size_bytes[sent], codecs, is_small)
    are_alike = is_small[1:] & is_small[:-1] & (codecs[1:] == codecs[:-1])
    may_join[sent[1:]] |= are_alike
    may_join[sent[:-1]] |= are_alike
    return may_join


def _are_cheaper_coalesced(sizes: npt.NDArray[np.int64], codecs: npt.NDArray[np.int16], is_small: Bools) -> Bools:
    """Return which batches have a codec whose batches are so many and so small that coalescing them saves more than it takes.

    By the median: a few large batches among many small ones, or the other way round, do not change it.
    """
    are_cheaper = np.zeros(len(sizes), np.bool_)
    for codec, most_median in CHEAPER_UP_TO_BYTES.items():
        is_codec = codecs == codec
        if np.count_nonzero(is_codec & is_small) >= CHEAPER_FROM_BATCHES and np.median(sizes[is_codec]) <= most_median:
            are_cheaper |= is_codec
    return are_cheaper
