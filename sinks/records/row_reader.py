"""Executor: rows of Spark as columns of records, and the target partition of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.errors import RecordRefusedError
from shallow_mirror.types import TargetPartition
from shallow_mirror.wire.columns import Partitioner, RecordColumns, byte_lengths

Longs = npt.NDArray[np.int64]

_CREATE_TOPIC = "Create it, or correct the name"


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target. `partition_count`: numbers 0 to below it."""

    name: str
    topic_id: str
    partition_count: int
    max_message_bytes: int


def windows(batches: Iterable[pa.RecordBatch], window_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in pieces of about so many bytes. None is empty."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pieces = -(-batch.nbytes // window_bytes)
        rows = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            if gathered and size + piece.nbytes > window_bytes:
                yield _joined(gathered)
                gathered, size = [], 0
            gathered.append(piece)
            size += piece.nbytes
    if gathered:
        yield _joined(gathered)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class RowReader:
    """Reads the rows of one slot, in order. `find_topic`: returns a topic of the target, None if there is none.

    `targets`: the partitions that rows went to, in the order of their numbers. Methods raise RecordRefusedError for a row that
    cannot become a record.
    """

    def __init__(
        self,
        slot: int,
        topic: str | None,
        find_topic: Callable[[str], TargetTopic | None],
        *,
        sticky_bytes: int,
        first: int,
        now_ms: Callable[[], int],
    ) -> None:
        """`sticky_bytes`, `first`: as in `Partitioner`. `now_ms`: the timestamp of rows without one."""
        self._slot, self._topic = slot, topic
        self._find_topic = find_topic
        self._partitioner_of = partial(Partitioner, sticky_bytes=sticky_bytes, first=first)
        self._now_ms = now_ms
        self._partitioners: dict[str, Partitioner] = {}
        self._first_numbers: dict[str, int] = {}
        self._row = 0
        self.topics: dict[str, TargetTopic] = {}
        self.targets: list[TargetPartition] = []

    def read(self, window: pa.RecordBatch) -> tuple[RecordColumns, Longs]:
        """Return the records of the next rows, and for each the number of its target."""
        columns: Mapping[str, pa.Array] = dict(zip(window.schema.names, window.columns, strict=True))
        keys, values = _bytes(columns.get("key")), _bytes(columns["value"])
        assert values is not None
        records = RecordColumns(keys, values, self._headers(columns.get("headers")), self._timestamps(columns, window.num_rows))
        numbers = self._numbers(columns, records)
        self._row += window.num_rows
        return records, numbers

    def refuse(self, row: int, rule: str, remedy: str) -> NoReturn:
        """Raise the error of a row of the window that is read."""
        raise RecordRefusedError(self._slot, self._row + row, rule, remedy)

    def _headers(self, headers: pa.ListArray | None) -> pa.ListArray | None:
        if headers is None or not len(headers.flatten()):
            return None
        names = headers.flatten().field(0)
        if names.null_count:
            counts = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False))
            header = int(np.flatnonzero(pc.is_null(names).to_numpy(zero_copy_only=False))[0])
            self.refuse(int(np.searchsorted(counts, header, "right")), "a header without a key", "Give it one, or leave it out")
        return headers

    def _timestamps(self, columns: Mapping[str, pa.Array], count: int) -> Longs:
        given = columns.get("timestamp")
        if given is None:
            return np.full(count, self._now_ms(), np.int64)
        micros = pc.fill_null(given.cast(pa.int64()), self._now_ms() * 1000).to_numpy(zero_copy_only=False)
        times = np.floor_divide(micros, 1000)
        early = np.flatnonzero(times < 0)
        if len(early):
            self.refuse(int(early[0]), "its timestamp is before 1970, which brokers refuse", "Write a later one, or null")
        return np.asarray(times, np.int64)

    def _numbers(self, columns: Mapping[str, pa.Array], records: RecordColumns) -> Longs:
        """Return the number of the target of each row. Topics are few: the loop is over those of the window."""
        count = len(records)
        explicit = columns.get("partition")
        if self._topic is not None:
            return self._numbers_in(self._topic, np.arange(count), explicit, records)
        column = columns["topic"]
        if column.null_count:
            row = int(np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False))[0])
            self.refuse(row, "its topic is null", "Give it one, or give the sink a topic")
        encoded = column.dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        numbers = np.empty(count, np.int64)
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            rows = np.flatnonzero(indices == index)
            numbers[rows] = self._numbers_in(name, rows, explicit, records)
        return numbers

    def _numbers_in(self, name: str, rows: Longs, explicit: pa.Array | None, records: RecordColumns) -> Longs:
        topic = self._known(name, int(rows[0]))
        is_all = len(rows) == len(records)
        keys = records.keys if records.keys is None or is_all else records.keys.take(pa.array(rows))
        sizes = byte_lengths(records.values)
        if explicit is None:
            chosen = self._partitioners[name].partitions(keys, sizes if is_all else sizes[rows])
        else:
            # A null one is chosen as if there were no column.
            given = pc.fill_null(explicit.cast(pa.int64()), _CHOSEN).to_numpy(zero_copy_only=False)
            chosen = (given if is_all else given[rows]).copy()
            free = np.flatnonzero(chosen == _CHOSEN)
            if len(free):
                free_keys = None if keys is None else keys.take(pa.array(free))
                chosen[free] = self._partitioners[name].partitions(free_keys, sizes[rows[free]])
            wrong = np.flatnonzero((chosen < 0) | (chosen >= topic.partition_count))
            if len(wrong):
                number = int(chosen[wrong[0]])
                rule = f"partition {number} of topic {name}, which has partitions 0 to {topic.partition_count - 1}"
                self.refuse(int(rows[wrong[0]]), rule, "Write an existing one, or null")
        return np.asarray(self._first_numbers[name] + chosen)

    def _known(self, name: str, row: int) -> TargetTopic:
        topic = self.topics.get(name)
        if topic is None:
            found = self._find_topic(name)
            if found is None:
                self.refuse(row, f"the target has no topic {name}", _CREATE_TOPIC)
            topic = self.topics[name] = found
            self._first_numbers[name] = len(self.targets)
            self.targets += [TargetPartition(name, topic.topic_id, number) for number in range(topic.partition_count)]
            self._partitioners[name] = self._partitioner_of(topic.partition_count)
        return topic


_CHOSEN = np.iinfo(np.int64).min
"""In the place of a partition that the row leaves open."""


def _bytes(column: pa.Array | None) -> pa.BinaryArray | None:
    """Return a column as byte strings, without a copy; None if all of it is null and it need not be there."""
    if column is None:
        return None
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
