"""Property: whatever becomes of a copy, an audit says so exactly where its records differ from what they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.examples import examples
from tests.support.record_batches import batch, record, view
from tests.verify.mirrored import at, changed

from shallow_mirror.broker.fetch import IndexedPartition
from shallow_mirror.types import IsolationLevel, OffsetRange, TopicPartition
from shallow_mirror.verify.map_index import DATA, MapRows, plan_range_pairs
from shallow_mirror.verify.partition_reader import Chunk, LogView, PartitionReader, Skipped
from shallow_mirror.verify.range_verifier import PartitionReaders, RangeResult, verify_range
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.records import open_batch

A, B = TopicPartition("orders", 0), TopicPartition("copy", 0)
FIRST_COPY = 1_000
ENOUGH = 1 << 20


class MemoryReader(PartitionReader):
    """Reads from a list of batches, `per_response` of them at a time."""

    def __init__(self, topic_partition: TopicPartition, batches: Sequence[bytes], end: int, per_response: int) -> None:
        super().__init__(
            None, topic_partition, LogView(0, end, False),  # type: ignore[arg-type]
            isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=ENOUGH, starts=np.empty(0, np.int64), buffer=None,  # type: ignore[arg-type]
        )  # fmt: skip
        self._batches, self._per_response = batches, per_response

    def read(self, wanted: OffsetRange, bytes_per_offset: float, *, is_first: bool) -> Iterator[Chunk | Skipped]:
        for first in range(0, len(self._batches), self._per_response):
            records = view(*self._batches[first : first + self._per_response])
            part = IndexedPartition(
                self.topic_partition, index_batches(records), records, (), 0, wanted.end, wanted.end, wanted.start
            )
            yield self._chunk(part, wanted.start, min(wanted.end, self.log.log_end))


def contents(batches: Sequence[bytes]) -> dict[int, tuple[Any, ...]]:
    """Return what a reader sees at each offset; the oracle, which knows nothing of batches."""
    records: dict[int, tuple[Any, ...]] = {}
    for raw in batches:
        for opened in open_batch(memoryview(raw), A, max_bytes=ENOUGH):
            records[opened.offset] = (opened.timestamp_ms, opened.key and bytes(opened.key), opened.value and bytes(opened.value))
    return records


counts = st.lists(st.integers(1, 6), min_size=1, max_size=8)
values = st.sampled_from([b"a", b"b", b"c", b"dd"])


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Source batches, and their copies after up to three things befell them."""
    source, base = [], 0
    for count in draw(counts):
        payload = b"".join(record(delta, b"k", draw(values)) for delta in range(count))
        source.append(batch(base, count, payload=payload, timestamp=draw(st.integers(0, 2))))
        base += count
    target = [at(raw, FIRST_COPY + int.from_bytes(raw[:8], "big")) for raw in source]
    for _ in range(draw(st.integers(0, 3))):
        target = draw(st.sampled_from([_lose, _swap, _change_value, _change_time, _cut_up]))(target, draw)
        if not target:
            break
    return source, target


def _lose(target: list[bytes], draw: st.DrawFn) -> list[bytes]:
    del target[draw(st.integers(0, len(target) - 1))]
    return target


def _swap(target: list[bytes], draw: st.DrawFn) -> list[bytes]:
    i, j = draw(st.integers(0, len(target) - 1)), draw(st.integers(0, len(target) - 1))
    first, other = target[i], target[j]
    if first[23:27] == other[23:27]:
        target[i], target[j] = first[:8] + other[8:], other[:8] + first[8:]
    return target


def _change_value(target: list[bytes], draw: st.DrawFn) -> list[bytes]:
    i = draw(st.integers(0, len(target) - 1))
    target[i] = changed(target[i], len(target[i]) - 2, draw(values)[:1])
    return target


def _change_time(target: list[bytes], draw: st.DrawFn) -> list[bytes]:
    i, time = draw(st.integers(0, len(target) - 1)), draw(st.integers(0, 3)).to_bytes(8, "big")
    target[i] = changed(changed(target[i], 27, time), 35, time)
    return target


def contents_of(field: memoryview | None) -> bytes | None:
    return None if field is None else bytes(field)


def _cut_up(target: list[bytes], draw: st.DrawFn) -> list[bytes]:
    """Another broker might cut batches otherwise: the same records."""
    i = draw(st.integers(0, len(target) - 1))
    base, time = int.from_bytes(target[i][:8], "big"), int.from_bytes(target[i][27:35], "big")
    records = list(open_batch(memoryview(target[i]), B, max_bytes=ENOUGH))
    parts = [
        batch(
            source_record.offset,
            1,
            payload=record(0, contents_of(source_record.key), contents_of(source_record.value)),
            timestamp=time,
        )
        for source_record in records
    ]
    assert records[0].offset == base
    return [*target[:i], *parts, *target[i + 1 :]]


def audit(source: list[bytes], target: list[bytes], per_response: tuple[int, int], is_deep: bool) -> RangeResult:
    end = int.from_bytes(source[-1][:8], "big") + int.from_bytes(source[-1][23:27], "big") + 1
    start, source_end, kind, target_start, size = (np.array([value], np.int64) for value in (0, end, DATA, FIRST_COPY, 1_000))
    rows = MapRows(start, source_end, kind, target_start, np.array([False]), size)
    of_source, of_target = (
        MemoryReader(A, source, end, per_response[0]),
        MemoryReader(B, target, FIRST_COPY + end, per_response[1]),
    )
    nothing = np.empty(0, np.int64)
    readers = PartitionReaders(of_source, of_target, of_source, of_target, rows, (nothing, nothing), is_deep)
    (range_pair,) = plan_range_pairs(rows, source_from=0, target_from=0, target_until=FIRST_COPY + end, size_bytes=1 << 30)
    return verify_range(readers, range_pair, is_first=True, on_position=lambda position: None)


@pytest.mark.thorough
@given(copies(), st.tuples(st.integers(1, 4), st.integers(1, 4)), st.booleans())
@settings(max_examples=examples(300), deadline=None)
def test_a_verification_reports_every_record_that_differs_and_none_outside_of_their_batches(
    pair: tuple[list[bytes], list[bytes]], per_response: tuple[int, int], is_deep: bool
) -> None:
    source, target = pair
    result = audit(source, target, per_response, is_deep)
    wanted = {FIRST_COPY + offset: content for offset, content in contents(source).items()}
    actual = contents(target)
    wrong = {offset - FIRST_COPY for offset in wanted if actual.get(offset) != wanted[offset]}
    reported_offsets = {
        offset
        for difference in result.differences
        if difference.source_start is not None
        for offset in range(difference.source_start, difference.source_end or 0)
    }
    assert wrong <= reported_offsets <= _batches_with(source, wrong) | (_twins(source) if wrong else set())
    assert result.record_count == len(wanted) - len(reported_offsets)
    assert not result.unchecked


def _twins(source: list[bytes]) -> set[int]:
    """Of equal records any may be told as the one that is missing or has moved."""
    actual = contents(source)
    return {offset for offset, content in actual.items() if list(actual.values()).count(content) > 1}


def _batches_with(batches: Sequence[bytes], offsets: set[int]) -> set[int]:
    """All offsets of batches that hold one of `offsets`: a batch that moved is told as a whole."""
    ranges = [set(contents([batch])) for batch in batches]
    return set().union(*(offset_range for offset_range in ranges if offset_range & offsets))
