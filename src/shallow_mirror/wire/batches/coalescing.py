"""Pure: which batches are so small that they become one with their neighbours, by what their headers say."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shallow_mirror.types import BatchLimits
from shallow_mirror.wire.batches.admission import SENT
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, CODEC_MASK

Bools = npt.NDArray[np.bool_]

RULE = "small batches become one (write.coalesce_bytes)"

MOST_RECORDS = 1 << 14
"""In a batch that is rewritten together with others, and in what several become."""

_SMALL_SHARE = 8
"""Only what takes no more than one such share of the limit is opened: it saves little to make one of two."""


def most_bytes(limits: BatchLimits) -> int:
    """How many bytes the records of a batch may take, before compression, that is made of several; 0: there is none."""
    return max(0, min(limits.coalesce_bytes or 0, limits.max_message_bytes - BATCH_HEADER_BYTES))


def find_small(index: BatchIndex, verdicts: npt.NDArray[np.int8], limits: BatchLimits) -> Bools:
    """Of each batch: whether it is small, and also the one in front of it or behind it that is sent, which has the same codec.

    If they really become one depends on how large they are when they are opened.
    """
    found = np.zeros(len(index), np.bool_)
    sent = np.flatnonzero(np.isin(verdicts, SENT)) if most_bytes(limits) else np.empty(0, np.int64)
    if len(sent) < 2:
        return found
    headers = index.headers[sent]
    is_small = (index.size_bytes[sent] * _SMALL_SHARE <= most_bytes(limits)) & (headers["records_count"] <= MOST_RECORDS)
    codecs = headers["attributes"] & CODEC_MASK
    are_alike = is_small[1:] & is_small[:-1] & (codecs[1:] == codecs[:-1])
    found[sent[1:]] |= are_alike
    found[sent[:-1]] |= are_alike
    return found
