"""Everywhere: what one poll of a `BatchConsumer` hands out: opaque record batches over bytes that are only lent.

The bytes belong to the consumer's receive buffer. They are lent until the next poll, which ends the loan: views handed
out are released, and a batch whose bytes are read later raises StaleBatchError. A producer holds the loan while a batch
waits to be acknowledged; a held loan cannot be ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from shallow_mirror.errors import MirrorError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import CODEC_MASK, CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, Codec
from shallow_mirror.wire.batches import BatchIndex


class BatchesInFlightError(MirrorError):
    """A consumer was polled while batches of its last poll wait in a producer. `held` is how many."""

    def __init__(self, held: int) -> None:
        self.held = held
        super().__init__(
            f"batches of the last poll are sent and not yet acknowledged: {held}; the next poll would overwrite their bytes. "
            "flush() the producer first, or send copies (batch.copy())"
        )

    def __reduce__(self) -> tuple[type[BatchesInFlightError], tuple[int]]:
        return type(self), (self.held,)


class StaleBatchError(MirrorError):
    """The bytes of a batch were read after the next poll reused their buffer."""


class Loan:
    """Bytes that are lent out until `end`, or for good if that is not called."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts: tuple[memoryview, ...] | None = tuple(part.toreadonly() for part in parts)
        self._views: list[memoryview] = []
        self._held = 0

    def view(self, part: int, start: int, size_bytes: int) -> memoryview:
        """Return a read-only view. Raises StaleBatchError after the end."""
        if self._parts is None:
            raise StaleBatchError(
                "this batch is of an earlier poll, its bytes are gone: use it before the next poll, or keep batch.copy()"
            )
        view = self._parts[part][start : start + size_bytes]
        self._views.append(view)
        return view

    def hold(self) -> None:
        self._held += 1

    def release(self) -> None:
        self._held -= 1

    def end(self) -> None:
        """Take the bytes back. Raises BatchesInFlightError while a producer holds the loan, and then changes nothing."""
        if self._held:
            raise BatchesInFlightError(self._held)
        self._parts = None
        while self._views:
            try:
                self._views.pop().release()
            # An array looks through the view: its bytes stay as they are, see ReceiveBuffer.is_viewed.
            except BufferError:
                continue


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatch:
    """One record batch as it is stored in the source's log. Offsets are the source's, [base_offset, last_offset] inclusive."""

    topic_partition: TopicPartition
    base_offset: int
    last_offset: int
    record_count: int
    """Less than the offsets it spans if compaction removed records."""
    size_bytes: int
    """Of the whole batch, its header of 61 bytes included."""
    codec: Codec
    leader_epoch: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    is_log_append_time: bool
    is_transactional: bool
    is_control: bool
    producer_id: int
    """-1 without one, as `producer_epoch` and `base_sequence`."""
    producer_epoch: int
    base_sequence: int
    loan: Loan = field(repr=False, compare=False)
    location: tuple[int, int] = field(repr=False, compare=False)
    """(part of the loan, byte in it): where the batch begins."""

    @property
    def view(self) -> memoryview:
        """Return all bytes of the batch, read-only, not copied. Valid until the next poll; raises StaleBatchError after it."""
        return self.loan.view(*self.location, self.size_bytes)

    def copy(self) -> FetchedBatch:
        """Return the same batch over bytes of its own, valid as long as it is referred to."""
        own = {name: getattr(self, name) for name in _FIELDS}
        return FetchedBatch(**own, loan=Loan([memoryview(bytes(self.view))]), location=(0, 0))


_FIELDS = tuple(name for name in FetchedBatch.__dataclass_fields__ if name not in ("loan", "location"))


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """Batches `chosen` (indices, ascending) of one partition's records."""

    topic_partition: TopicPartition
    index: BatchIndex
    records: memoryview
    chosen: npt.NDArray[np.int64]


class FetchedBatches(Sequence[FetchedBatch]):
    """The batches of one poll, in log order within each partition. May be empty. Valid until the next poll."""

    def __init__(self, parts: Sequence[FetchedPart]) -> None:
        self.loan = Loan([part.records for part in parts])
        self._batches = [batch for number, part in enumerate(parts) for batch in _batches_of(part, number, self.loan)]

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> FetchedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FetchedBatch]: ...
    def __getitem__(self, index: int | slice) -> FetchedBatch | Sequence[FetchedBatch]:
        return self._batches[index]

    def __iter__(self) -> Iterator[FetchedBatch]:
        return iter(self._batches)

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self._batches)


def _batches_of(part: FetchedPart, part_number: int, loan: Loan) -> Iterator[FetchedBatch]:
    headers, index = part.index.headers[part.chosen], part.index
    attributes = headers["attributes"]
    columns: dict[str, list[Any]] = {
        "base_offset": headers["base_offset"].tolist(),
        "last_offset": index.last_offset[part.chosen].tolist(),
        "record_count": headers["records_count"].tolist(),
        "size_bytes": index.size_bytes[part.chosen].tolist(),
        "codec": [Codec(code) for code in (attributes & CODEC_MASK).tolist()],
        "leader_epoch": headers["partition_leader_epoch"].tolist(),
        "base_timestamp_ms": headers["base_timestamp"].tolist(),
        "max_timestamp_ms": headers["max_timestamp"].tolist(),
        "is_log_append_time": ((attributes & LOG_APPEND_TIME_BIT) != 0).tolist(),
        "is_transactional": ((attributes & TRANSACTIONAL_BIT) != 0).tolist(),
        "is_control": ((attributes & CONTROL_BIT) != 0).tolist(),
        "producer_id": headers["producer_id"].tolist(),
        "producer_epoch": headers["producer_epoch"].tolist(),
        "base_sequence": headers["base_sequence"].tolist(),
        "location": [(part_number, pos) for pos in index.pos[part.chosen].tolist()],
    }
    for values in zip(*columns.values(), strict=True):
        yield FetchedBatch(topic_partition=part.topic_partition, loan=loan, **dict(zip(columns, values, strict=True)))
