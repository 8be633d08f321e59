"""Pure: the logs of a source cluster as its brokers would have them, and which records of them a consumer sees.

This is the oracle of random archives: nothing in it comes from the package under test.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

Headers = tuple[tuple[bytes, bytes | None], ...]


class LogRecord(NamedTuple):
    """A record as consumers get it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def first_time_after(base_timestamp_ms: int, max_timestamp_ms: int, after_ms: int) -> int | None:
    """Return the first of the two times in the header of a batch that is newer than a time; None if none is."""
    return next((at_ms for at_ms in (base_timestamp_ms, max_timestamp_ms) if at_ms > after_ms), None)


class TxnKey(NamedTuple):
    """A transaction in one log. `first_offset`: of its first data."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A record batch with its bytes. `txn`: of transactional data. `marker`: whether a control batch commits."""

    base_offset: int
    end_offset: int
    data: bytes
    records: tuple[LogRecord, ...] = ()
    txn: TxnKey | None = None
    marker: bool | None = None

    @property
    def leader_epoch(self) -> int:
        return int.from_bytes(self.data[12:16], signed=True)

    @property
    def producer_id(self) -> int:
        return int.from_bytes(self.data[43:51], signed=True)

    def first_time_after(self, after_ms: int) -> int | None:
        """Return the time that the header gives for its first record newer than a time; None if none is."""
        times = [record.timestamp_ms for record in self.records]
        return first_time_after(times[0], max(times), after_ms) if times else None


@dataclass(frozen=True, slots=True)
class TxnPart:
    """The part of a transaction in one log. `end_offset`: behind its last data.

    `is_committed`: None until the coordinator has decided. `marker_offset`: None until the marker is in the log.
    """

    producer_id: int
    producer_epoch: int
    has_own_epoch: bool
    first_offset: int
    end_offset: int
    is_committed: bool | None = None
    marker_offset: int | None = None

    @property
    def key(self) -> TxnKey:
        return TxnKey(self.producer_id, self.first_offset)

    @property
    def name(self) -> tuple[int, int] | None:
        """Return producer id and epoch, which name one transaction in all partitions with transaction.version 2; else None."""
        return (self.producer_id, self.producer_epoch) if self.has_own_epoch else None


@dataclass(slots=True)
class SourceLog:
    """The log of one partition on its leader."""

    batches: list[LogBatch] = field(default_factory=list)
    parts: dict[TxnKey, TxnPart] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    leader_epoch: int = 0

    def copy(self) -> SourceLog:
        return SourceLog(list(self.batches), dict(self.parts), self.start, self.end, self.leader_epoch)

    def append(self, batch: LogBatch) -> None:
        assert batch.base_offset >= self.end
        self.batches.append(batch)
        self.end = batch.end_offset

    @property
    def open_parts(self) -> list[TxnPart]:
        return [part for part in self.parts.values() if part.marker_offset is None]

    @property
    def last_stable_offset(self) -> int:
        return min([self.end, *(part.first_offset for part in self.open_parts)])

    def boundaries(self, first: int, last: int) -> list[int]:
        """Return the offsets of [first, last] at which a batch begins, and the end of the log."""
        offsets = [batch.base_offset for batch in self.batches] + [self.end]
        return [offset for offset in offsets if first <= offset <= last]

    def between(self, first: int, end: int) -> list[LogBatch]:
        """Return the batches that a fetch of [first, end) returns. The first one may begin below it."""
        return [batch for batch in self.batches if batch.end_offset > first and batch.base_offset < end]

    def aborted(self, first: int, upper: int) -> list[TxnKey]:
        """Return the aborted transactions that a Fetch response for [first, upper) lists."""
        return sorted(
            part.key
            for part in self.parts.values()
            if part.marker_offset is not None
            and not part.is_committed
            and part.marker_offset >= first
            and part.first_offset < upper
        )

    def truncate(self, offset: int) -> list[TxnPart]:
        """Remove the end of the log as an unclean election does; return the transactions whose marker is lost. They are open."""
        self.batches = [batch for batch in self.batches if batch.end_offset <= offset]
        lost: list[TxnPart] = []
        for key, part in list(self.parts.items()):
            data_end = max((batch.end_offset for batch in self.batches if batch.txn == key), default=None)
            if data_end is None:
                del self.parts[key]
            elif part.marker_offset is not None and part.marker_offset >= offset:
                lost.append(part)
                self.parts[key] = replace(part, end_offset=data_end, marker_offset=None)
            else:
                self.parts[key] = replace(part, end_offset=data_end)
        self.end = offset
        self.start = min(self.start, offset)
        self.leader_epoch += 1
        return lost

    def is_aborted(self, batch: LogBatch) -> bool:
        return batch.txn is not None and self.parts[batch.txn].is_committed is False
