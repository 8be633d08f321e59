"""Driver: what one side shows, as items in the order of its log: whole batches, and records of those that must be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shallow_mirror.errors import CorruptBatchError, OffsetDeltasError
from shallow_mirror.verify.fingerprints import (
    NO_TIMESTAMP,
    Items,
    RecordItems,
    batch_items,
    damaged_item,
    joined,
    no_items,
    unopened,
)
from shallow_mirror.verify.map_index import Bools
from shallow_mirror.verify.partition_reader import Chunk, LogReader, Skipped
from shallow_mirror.wire import LOG_APPEND_TIME_BIT
from shallow_mirror.wire.batches import Verdict, has_an_end
from shallow_mirror.wire.records import OPENED_FETCHES, find_fillers, open_batch

PIECE_ITEMS = 65_536
"""So many items, or a few more, are made at a time."""

_VISIBLE = (Verdict.RAW, Verdict.REBUILD)

Locate = Callable[[Items], Bools]
"""Fill in where items lead, and return which of them have to be opened."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Everything of its side below `position` is in this piece or in one before it."""

    items: Items
    position: int


@dataclass(slots=True)
class OpenedCount:
    batches: int = 0


def pieces_of(chunk: Chunk | Skipped, reader: LogReader, locate: Locate, opened: OpenedCount) -> Iterator[Piece]:
    """Yield the visible batches of a chunk, and the damaged ones whatever they seem to be."""
    if isinstance(chunk, Skipped):
        yield Piece(_located(damaged_item(chunk.start, chunk.end), locate), chunk.end)
        return
    is_visible = np.isin(chunk.admission.verdicts, _VISIBLE) & ~chunk.is_damaged & ~find_fillers(chunk.index, chunk.records)
    visible = chunk.chosen[is_visible[chunk.chosen]]
    headers, sizes = chunk.index.headers[visible], chunk.index.size_bytes[visible]
    items = batch_items(headers, sizes, compares_max_timestamp=not reader.log.is_preserved)
    is_opened = locate(items)
    yield from opened_pieces(chunk, visible[is_opened].tolist(), reader, locate, [items[~is_opened], _damaged_of(chunk)])
    opened.batches += int(is_opened.sum())
    if len(chunk.chosen):
        yield Piece(no_items(), int(chunk.index.last_offset[chunk.chosen[-1]]) + 1)


def opened_pieces(
    chunk: Chunk, batches: Sequence[int], reader: LogReader, locate: Locate, beside: Sequence[Items] = ()
) -> Iterator[Piece]:
    """Yield the records of these batches of a chunk, with the items `beside` them. Raises BatchRefusedError, ConfigError."""
    collected = RecordItems()
    waiting = list(beside)
    position = 0
    for i in batches:
        for position in _open_into(collected, chunk, i, reader, waiting):
            if len(collected) >= PIECE_ITEMS:
                yield Piece(_located(joined([*waiting, collected.take()]), locate), position)
                waiting = []
    if waiting or len(collected):
        yield Piece(_located(joined([*waiting, collected.take()]), locate), position)


def _located(items: Items, locate: Locate) -> Items:
    locate(items)
    return items


def _damaged_of(chunk: Chunk) -> Items:
    """Return items up to the next batch, or to the end in the header. The last one of a skipped range has no true end."""
    damaged = []
    base = chunk.index.headers["base_offset"]
    for i in chunk.chosen[chunk.is_damaged[chunk.chosen]].tolist():
        start, is_last = int(base[i]), i + 1 == len(base)
        if not is_last and base[i + 1] > start:
            damaged.append(damaged_item(start, int(base[i + 1]), int(chunk.index.size_bytes[i])))
        elif has_an_end(chunk.index.headers[i]):
            damaged.append(damaged_item(start, int(chunk.index.last_offset[i]) + 1, int(chunk.index.size_bytes[i])))
        elif not is_last:
            damaged.append(damaged_item(start, start + 1, int(chunk.index.size_bytes[i])))
    return joined(damaged)


def _open_into(collected: RecordItems, chunk: Chunk, i: int, reader: LogReader, beside: list[Items]) -> Iterator[int]:
    """Yield up to which offset one batch was opened, record by record. An unreadable rest of it is damaged."""
    start, size, header = int(chunk.index.pos[i]), int(chunk.index.size_bytes[i]), chunk.index.headers[i]
    base, end = int(header["base_offset"]), int(chunk.index.last_offset[i]) + 1
    position, newest = base, NO_TIMESTAMP
    try:
        for record in open_batch(
            chunk.records[start : start + size], reader.topic_partition, max_bytes=OPENED_FETCHES * reader.fetch_bytes
        ):
            collected.add(record)
            position, newest = record.offset + 1, max(newest, record.timestamp_ms)
            yield position
    except OffsetDeltasError:
        whole = batch_items(
            chunk.index.headers[[i]], chunk.index.size_bytes[[i]], compares_max_timestamp=not reader.log.is_preserved
        )
        beside.append(unopened(whole, position))
        return
    except CorruptBatchError as error:
        reader.log.damages[position] = f"its checksum holds, but {error.reason}"
        beside.append(damaged_item(position, end, size))
        return
    off_ms = max(int(header["max_timestamp"]), NO_TIMESTAMP) - newest
    if off_ms and not header["attributes"] & LOG_APPEND_TIME_BIT and not reader.log.is_preserved:
        reader.log.wrong_headers[base, end] = f"the maximum timestamp in its header is {off_ms:+d} ms off"
