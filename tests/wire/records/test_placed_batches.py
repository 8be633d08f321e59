"""What is sent so that every record keeps its offset: applied to a log, it yields the records of the source at their offsets."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.support.record_batches import batch, marker, record

from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.types import (
    BatchLimits,
    IsolationLevel,
    LogAppendTimePolicy,
    SegmentKind,
    SourcePartition,
    TargetPartition,
    TopicPartition,
)
from shallow_mirror.wire import LOG_APPEND_TIME_BIT, verify_crc
from shallow_mirror.wire.batches import SEQUENCE_MODULUS, SharedProducer, admit, index_batches, restamp_at_offsets
from shallow_mirror.wire.records import FILLER_KEY, Fillers, parse_record
from shallow_mirror.wire.records.placed_batches import Placement, place

T = TopicPartition("t", 0)
SOURCE, TARGET = SourcePartition("t", "id", 0), TargetPartition("t", "id2", 0)
LIMITS = BatchLimits(
    max_message_bytes=1 << 20, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
)
PRODUCER = SharedProducer(producer_id=77, now_ms=10_000, old_before_ms=500)


@dataclass
class Log:
    """A partition's log as a broker keeps it of one producer, and what a consumer returns of it, by offset."""

    end: int = 0
    values: dict[int, bytes | None] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)

    def append(self, raw: memoryview | object) -> int:
        assert isinstance(raw, memoryview)
        assert verify_crc(raw)
        header = index_batches(raw).headers[0]
        count = int(header["records_count"])
        assert count == int(header["last_offset_delta"]) + 1 > 0  # what brokers check
        assert (int(header["producer_id"]), int(header["producer_epoch"]), int(header["base_offset"])) == (77, 0, 0)
        assert int(header["base_sequence"]) == self.end % SEQUENCE_MODULUS  # else OUT_OF_ORDER_SEQUENCE_NUMBER
        payload = raw[61:]
        if int(header["attributes"]) & 7 == 1:
            payload = memoryview(gzip.decompress(payload))
            deltas = list(range(count))
        pos, base = 0, self.end
        for number in range(count):
            pos, (_, delta, _, value, _) = parse_record(payload, pos)
            if int(header["attributes"]) & 7 == 1:
                assert delta == deltas[number]
            if delta >= 0:
                self.values[base + delta] = None if value is None else bytes(value)
        assert pos == len(payload)
        self.times.append(int(header["max_timestamp"]))
        self.end += count
        return base


def placed(raw: bytes, *, position: int = 0, log_end: int = 0, limits: BatchLimits = LIMITS, aborted: Sequence[tuple[int, int]] = (),
           key: bytes | None = None, range_end: int = 1 << 62, is_cut: bool = False) -> Placement:  # fmt: skip
    records = memoryview(bytearray(raw))
    index = index_batches(records)
    admission = admit(
        index, records, topic_partition=T, position=position, range_end=range_end, aborted=aborted, limits=limits, is_cut=is_cut
    )
    assert not admission.refusals
    placement = place(
        index,
        records,
        admission,
        topic_partition=T,
        position=position,
        log_end=log_end,
        limits=limits,
        fillers=Fillers(key, limits.max_message_bytes),
        producer=PRODUCER,
        max_opened_bytes=1 << 20,
    )
    restamp_at_offsets(placement.stamped)
    builder = SegmentBuilder(SOURCE, TARGET, position)
    end = placement.done_with(len(placement.queue), index)
    builder.add(index, admission, placement.base_offsets_of(end), placement.rewritten, end=end)
    for segment in builder.build():
        if segment.kind is SegmentKind.DATA:
            assert segment.target_start == segment.source_start
    return placement


def sent_to(log: Log, placement: Placement) -> Log:
    offsets = [log.append(one) for one in placement.queue]
    assert placement.queue.first_misplaced(offsets) is None
    assert log.end == max(placement.log_end, log.end)
    return log


def values(raw: bytes) -> dict[int, bytes]:
    index = index_batches(memoryview(raw))
    found = {}
    for header, start in zip(index.headers, index.pos.tolist(), strict=True):
        payload, pos = memoryview(raw)[start + 61 :], 0
        for _ in range(int(header["records_count"])):
            pos, (_, delta, _, value, _) = parse_record(payload, pos)
            assert value is not None
            found[int(header["base_offset"]) + delta] = bytes(value)
    return found


def spans(raw: bytes) -> list[tuple[int, int]]:
    index = index_batches(memoryview(raw))
    return list(zip(index.headers["base_offset"].tolist(), (index.last_offset + 1).tolist(), strict=True))


def test_raw_batches_keep_their_bytes_but_for_the_producer() -> None:
    raw = batch(0, 3) + batch(3, 2)
    log = sent_to(Log(), placed(raw))
    assert log.values == values(raw)
    assert log.end == 5


def test_offsets_in_front_of_the_first_batch_and_between_batches_are_filled() -> None:
    raw = batch(5, 1) + batch(9, 1)
    placement = placed(raw, position=5)
    assert len(placement.queue) == 4
    assert sent_to(Log(), placement).values == values(raw)


def test_markers_and_aborted_data_become_fillers_at_once() -> None:
    raw = (
        batch(0, 2)
        + batch(2, 3, attributes=0x10, producer_id=9, producer_epoch=0)
        + marker(5, 0, 9)
        + batch(6, 1)
        + marker(7, 1, 8)
    )
    placement = placed(raw, aborted=[(9, 2)])
    log = sent_to(Log(), placement)
    assert log.end == 8  # also the marker at the end: groups may be committed behind it
    assert sorted(log.values) == [0, 1, 6]


def test_a_compacted_batch_keeps_its_records_at_their_offsets() -> None:
    payload = b"".join(record(delta, b"k", bytes([delta])) for delta in (1, 2, 5))
    raw = batch(10, deltas=[1, 2, 5], last_offset_delta=7, payload=payload) + batch(18, 1)
    placement = placed(raw, position=10, log_end=10, key=FILLER_KEY)
    log = sent_to(Log(end=10), placement)
    assert log.values == values(raw)
    assert log.end == 19


def test_what_lies_below_the_end_of_the_log_is_recorded_and_not_sent() -> None:
    raw = batch(0, 3) + batch(3, 2) + batch(5, 1)
    placement = placed(raw, log_end=3)
    assert placement.base_offsets == [0, 3, 5]
    assert sent_to(Log(end=3), placement).end == 6
    assert len(placed(raw, log_end=6).queue) == 0


def test_a_batch_in_which_the_log_ends_is_continued_from_there() -> None:
    raw = batch(0, 5) + batch(5, 1)
    placement = placed(raw, log_end=2)
    log = sent_to(Log(end=2), placement)
    assert log.values == {offset: value for offset, value in values(raw).items() if offset >= 2}
    assert placement.base_offsets == [0, 5]


def test_a_batch_above_the_limit_of_the_topic_is_split_in_place() -> None:
    payload = b"".join(record(delta, None, b"x" * 100) for delta in range(10))
    raw = batch(4, 10, payload=payload)
    limits = BatchLimits(
        max_message_bytes=500, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
    )
    placement = placed(raw, position=4, limits=limits)
    assert all(len(one) <= 500 for one in placement.queue)
    assert sent_to(Log(), placement).values == values(raw)


def test_a_compacted_record_above_the_limit_is_refused_with_the_setting() -> None:
    payload = record(0, b"k", b"x" * 600) + record(3, b"k", b"y")
    raw = batch(0, deltas=[0, 3], payload=payload)
    limits = BatchLimits(
        max_message_bytes=500, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
    )
    with pytest.raises(BatchRefusedError, match=r"record at offset 0 alone .* max.message.bytes=500"):
        placed(raw, limits=limits)


def test_a_damaged_compacted_batch_is_named() -> None:
    raw = bytearray(batch(7, deltas=[0, 3]))
    raw[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="corrupt record batch at base offset 7: its CRC"):
        placed(bytes(raw), position=7)


def test_old_batches_keep_the_producer_alive_by_the_time_of_now() -> None:
    records = memoryview(bytearray(batch(0, 1, timestamp=499) + batch(1, 1, timestamp=500)))
    index = index_batches(records)
    admission = admit(index, records, topic_partition=T, position=0, range_end=9, aborted=(), limits=LIMITS)
    placement = place(
        index, records, admission, topic_partition=T, position=0, log_end=0, limits=LIMITS,
        fillers=Fillers(None, 1 << 20), producer=PRODUCER, max_opened_bytes=1 << 20,
    )  # fmt: skip
    restamp_at_offsets(placement.stamped)
    old, new = (index_batches(raw).headers[0] for raw in placement.queue)  # type: ignore[arg-type]
    assert old["attributes"] & LOG_APPEND_TIME_BIT
    assert old["max_timestamp"] == PRODUCER.now_ms
    assert not new["attributes"] & LOG_APPEND_TIME_BIT
    assert new["max_timestamp"] == 500


def test_sequences_wrap_behind_two_to_the_31() -> None:
    base = SEQUENCE_MODULUS - 1
    log = sent_to(Log(end=base), placed(batch(base, 1) + batch(base + 1, 2), position=base, log_end=base))
    assert log.end == base + 3


@pytest.mark.slow
def test_the_fillers_of_a_long_hole_are_made_when_they_are_taken() -> None:
    raw = batch(2, 1) + batch(250_000, 2) + batch(250_003, 1)
    placement = placed(raw)
    queue = placement.queue
    assert queue.batches() is queue  # a list would hold all fillers
    assert [queue.offset(i) for i in range(len(queue))] == [0, 2, 3, 90_003, 180_003, 250_000, 250_002, 250_003]
    log = sent_to(Log(), placement)
    assert log.values == values(raw)
    assert log.end == 250_004
    assert queue.first_misplaced([0, 2, 3, 90_004]) == 3
    assert queue.first_misplaced([0, 2, 3, 90_004, 180_003], 3) == 3
    assert queue.first_misplaced([0, 2, 3, 90_004, 180_003, 250_000, 250_003], 4) == 6
    assert queue.first_misplaced([0, 2, 3, 90_004, 180_003, 250_000], 4) is None


def test_batches_behind_a_long_hole_that_are_not_acknowledged_yet_are_not_misplaced() -> None:
    queue = placed(batch(0, 1) + batch(1_002, 1) + batch(1_003, 1) + batch(1_004, 1) + batch(1_005, 1)).queue
    offsets = [queue.offset(i) for i in range(len(queue))]
    assert offsets == [0, 1, 1_002, 1_003, 1_004, 1_005]
    assert [queue.first_misplaced(offsets[:acknowledged]) for acknowledged in range(len(offsets) + 1)] == [None] * 7


def test_a_queue_of_batches_and_short_holes_is_a_list() -> None:
    placement = placed(batch(2, 1) + batch(4, 1) + batch(5, 2))
    assert placement.queue.batches() == list(placement.queue)
    assert isinstance(placement.queue.batches(), list)
    assert len(placed(b"").queue.batches()) == 0


def test_a_queue_without_its_first_batch() -> None:
    for raw, log_end in ((batch(0, 1) + batch(1, 2), 0), (batch(5, 1), 0), (batch(5_000, 1), 0), (batch(200_000, 1), 0)):
        queue = placed(raw, log_end=log_end).queue
        rest = queue.without_first()
        assert [rest.offset(i) for i in range(len(rest))] == [queue.offset(i) for i in range(1, len(queue))]
    assert queue.first_misplaced([0, 6]) == 1
    assert queue.first_misplaced([0]) is None
    with pytest.raises(IndexError):
        queue[len(queue)]


@st.composite
def sources(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw batches with holes between and inside them, and the position of the first."""
    position = offset = draw(st.integers(0, 50))
    raw = b""
    for _ in range(draw(st.integers(1, 6))):
        offset += draw(st.integers(0, 3))
        deltas = sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=6)))
        last = deltas[-1] + draw(st.integers(0, 2))
        payload = b"".join(record(delta, b"k", b"%d" % (offset + delta)) for delta in deltas)
        raw += batch(offset, deltas=deltas, last_offset_delta=last, payload=payload, timestamp=draw(st.integers(0, 1000)))
        offset += last + 1
    return raw, position


@pytest.mark.slow
@given(sources(), st.data())
def test_a_log_continued_anywhere_holds_every_record_at_its_offset(source: tuple[bytes, int], data: st.DataObject) -> None:
    raw, position = source
    whole = sent_to(Log(), placed(raw, position=position, key=FILLER_KEY))
    assert whole.values == values(raw)
    cut = data.draw(st.integers(0, whole.end))
    rest = sent_to(Log(end=cut), placed(raw, position=position, log_end=cut, key=FILLER_KEY))
    assert rest.values == {offset: value for offset, value in whole.values.items() if offset >= cut}
    assert rest.end == whole.end


@pytest.mark.slow
@given(sources(), st.data())
def test_a_cut_anywhere_leaves_the_records_below_it_also_in_a_log_continued_anywhere(
    source: tuple[bytes, int], data: st.DataObject
) -> None:
    raw, position = source
    cut = data.draw(st.integers(position, max(values(raw)) + 3))
    log = sent_to(Log(), placed(raw, position=position, key=FILLER_KEY, range_end=cut, is_cut=True))
    assert log.values == {offset: value for offset, value in values(raw).items() if offset < cut}
    assert log.end <= cut
    assert log.end == cut or not any(start < cut <= end for start, end in spans(raw))
    log_end = data.draw(st.integers(0, log.end))
    rest = sent_to(Log(end=log_end), placed(raw, position=position, log_end=log_end, key=FILLER_KEY, range_end=cut, is_cut=True))
    assert rest.values == {offset: value for offset, value in log.values.items() if offset >= log_end}
    assert rest.end == log.end


def test_a_cut_in_a_compressed_batch_keeps_its_codec() -> None:
    payload = b"".join(record(delta, None, b"x" * 100) for delta in range(10))
    raw = batch(4, 10, payload=gzip.compress(payload), attributes=1)
    log = sent_to(Log(end=4), placement := placed(raw, position=4, log_end=4, range_end=7, is_cut=True))
    assert sorted(log.values) == [4, 5, 6]
    (cut,) = placement.queue
    assert isinstance(cut, memoryview)
    assert int(index_batches(cut).headers[0]["attributes"]) & 7 == 1


def test_a_part_without_batches_fills_the_log_up_to_the_position() -> None:
    placement = placed(b"", position=7, log_end=3)
    assert sent_to(Log(end=3), placement).end == 7


def test_an_empty_part_sends_nothing() -> None:
    assert len(placed(b"").queue) == 0
    assert np.array_equal(placed(b"").base_offsets, [])
