"""Driver: what one side shows, as items in the order of its log: whole batches, and records of those that must be opened."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shallow_mirror.audit.items import Items, batch_items, damaged_item, joined, record_items
from shallow_mirror.audit.rows import Bools
from shallow_mirror.audit.side import Chunk, Side, Skipped, has_an_end
from shallow_mirror.errors import CorruptBatch
from shallow_mirror.wire.admission import Verdict
from shallow_mirror.wire.header import LOG_APPEND_TIME_BIT
from shallow_mirror.wire.records import open_batch

OPENED_FETCHES = 16
"""A batch that is opened may take this many `read.fetch_bytes`."""

PIECE_ITEMS = 65_536
"""So many items, or a few more, are made at a time."""

_VISIBLE = (Verdict.RAW, Verdict.REBUILD)

Locate = Callable[[Items], Bools]
"""Fills in where items lead, and says which of them only their records can tell."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Everything of its side below `position` is in this piece or in one before it."""

    items: Items
    position: int


@dataclass(slots=True)
class OpenedCount:
    batches: int = 0


def pieces_of(chunk: Chunk | Skipped, side: Side, locate: Locate, opened: OpenedCount) -> Iterator[Piece]:
    """The visible batches of a chunk, and the damaged ones whatever they seem to be."""
    if isinstance(chunk, Skipped):
        yield Piece(_located(damaged_item(chunk.start, chunk.end), locate), chunk.end)
        return
    visible = chunk.chosen[np.isin(chunk.admission.verdicts[chunk.chosen], _VISIBLE) & ~chunk.is_damaged[chunk.chosen]]
    items = batch_items(chunk.index.headers[visible], chunk.index.size_bytes[visible])
    to_open = np.flatnonzero(locate(items)).tolist()
    waiting: list[Items] = [_located(_damaged_of(chunk), locate)]
    begin = 0
    for at in to_open:
        waiting.append(items[begin:at])
        begin = at + 1
        for records in opened_items(chunk, int(visible[at]), side, locate):
            waiting.append(records)
            if sum(map(len, waiting)) >= PIECE_ITEMS:
                yield Piece(joined(waiting), int(records["end"][-1]))
                waiting = []
        opened.batches += 1
    waiting.append(items[begin:])
    if len(chunk.chosen):
        yield Piece(joined(waiting), int(chunk.index.last_offset[chunk.chosen[-1]]) + 1)


def _located(items: Items, locate: Locate) -> Items:
    locate(items)
    return items


def _damaged_of(chunk: Chunk) -> Items:
    """Up to the next batch, or to where the header says; a last one without a believable end is told by what is skipped."""
    found = []
    base = chunk.index.headers["base_offset"]
    for i in chunk.chosen[chunk.is_damaged[chunk.chosen]].tolist():
        start, is_last = int(base[i]), i + 1 == len(base)
        if not is_last and base[i + 1] > start:
            found.append(damaged_item(start, int(base[i + 1]), int(chunk.index.size_bytes[i])))
        elif has_an_end(chunk.index.headers[i]):
            found.append(damaged_item(start, int(chunk.index.last_offset[i]) + 1, int(chunk.index.size_bytes[i])))
        elif not is_last:
            found.append(damaged_item(start, start + 1, int(chunk.index.size_bytes[i])))
    return joined(found)


def opened_items(chunk: Chunk, i: int, side: Side, locate: Locate) -> Iterator[Items]:
    """The records of one batch; the rest of it as damaged where it cannot be read. Raises BatchRefused, ConfigError."""
    start, size = int(chunk.index.pos[i]), int(chunk.index.size_bytes[i])
    header = chunk.index.headers[i]
    base, end = int(header["base_offset"]), int(chunk.index.last_offset[i]) + 1
    newest = -(1 << 63)
    try:
        records = open_batch(chunk.records[start : start + size], side.place, max_bytes=OPENED_FETCHES * side.fetch_bytes)
        while len(items := record_items(itertools.islice(records, PIECE_ITEMS))):
            newest = max(newest, int(items["content"][:, 0].view(np.int64).max()))
            base = int(items["end"][-1])
            yield _located(items, locate)
    except CorruptBatch as error:
        side.log.damages[base] = f"its checksum holds, but {error.reason}"
        yield _located(damaged_item(base, end, size), locate)
        return
    if newest != header["max_timestamp"] and not header["attributes"] & LOG_APPEND_TIME_BIT:
        off_ms = int(header["max_timestamp"]) - newest
        side.log.wrong_headers[int(header["base_offset"]), end] = f"the maximum timestamp in its header is {off_ms:+d} ms off"
