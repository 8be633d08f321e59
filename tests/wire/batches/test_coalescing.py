"""Small batches that become one: the same records in the same order, and every offset translated exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.fakes import record_rules
from tests.support.examples import examples
from tests.support.golden_files import reads
from tests.support.rebuilt_batches import CONFIGS, contents
from tests.support.record_batches import batch, marker, record, view
from tests.support.record_encoders import ENCODERS, ENOUGH, A, contents as texts, full_record

from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.errors import CorruptBatchError
from shallow_mirror.types import (
    BatchLimits,
    IsolationLevel,
    LogAppendTimePolicy,
    Segment,
    SegmentKind,
    SourcePartition,
    TargetPartition,
)
from shallow_mirror.wire import Codec, coalescing, verify_crc
from shallow_mirror.wire.batches import BatchIndex, Verdict, admit, index_batches, restamp
from shallow_mirror.wire.records import Outgoing, make_outgoing, open_batch, rebuild_pipeline

SOURCE, TARGET = SourcePartition("t", "id", 0), TargetPartition("t", "other", 0)
FIRST_TARGET = 9_000
Content = tuple[Any, ...]


@dataclass(frozen=True)
class Copy:
    index: BatchIndex
    outgoing: Outgoing
    segments: tuple[Segment, ...]
    sent: list[bytes]

    @property
    def restamped(self) -> list[bytes]:
        """As the target gets them."""
        sent, records = self.outgoing.index, memoryview(bytearray(self.outgoing.records))
        restamp(records, sent, self.outgoing.chosen, producer_id=7, producer_epoch=1, first_sequence=0)
        return _batches_of(self.outgoing, records)

    @cached_property
    def records(self) -> list[Content]:
        return [content for raw in self.restamped for content in contents(raw)]

    def record_at(self, offset: int) -> Content:
        """By the row of the map that holds the source offset."""
        (row,) = [segment for segment in self.segments if segment.source_start <= offset < segment.source_end]
        assert row.target_start is not None
        return self.records[row.target_start + offset - row.source_start - FIRST_TARGET]


def copy(
    batches: Sequence[bytes],
    *,
    coalesce_bytes: int | None = 1 << 16,
    max_message_bytes: int = ENOUGH,
    policy: LogAppendTimePolicy = LogAppendTimePolicy.KEEP,
    position: int = 0,
    aborted: Sequence[tuple[int, int]] = (),
) -> Copy:
    records = view(*batches)
    index = index_batches(records)
    assert index.consumed_bytes == len(records)
    limits = BatchLimits(
        max_message_bytes=max_message_bytes,
        isolation_level=IsolationLevel.READ_COMMITTED,
        log_append_time=policy,
        coalesce_bytes=coalesce_bytes,
    )
    admission = admit(index, records, topic_partition=A, position=position, range_end=1 << 40, aborted=aborted, limits=limits)
    outgoing = make_outgoing(
        index, records, admission, topic_partition=A, position=position, limits=limits, max_opened_bytes=ENOUGH
    )
    sent = outgoing.index
    counts = sent.headers["records_count"][outgoing.chosen].tolist()
    builder = SegmentBuilder(SOURCE, TARGET, position)
    builder.add(index, admission, (FIRST_TARGET + np.cumsum([0, *counts])[:-1]).tolist(), outgoing.rewritten)
    return Copy(index, outgoing, builder.build(), _batches_of(outgoing, outgoing.records))


def _batches_of(outgoing: Outgoing, records: memoryview) -> list[bytes]:
    starts, sizes = outgoing.index.pos[outgoing.chosen].tolist(), outgoing.index.size_bytes[outgoing.chosen].tolist()
    return [bytes(records[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def records_of(raw: bytes, policy: LogAppendTimePolicy, position: int) -> dict[int, Content]:
    """By offset what a copy of it has to hold."""
    if policy is LogAppendTimePolicy.PRODUCER:
        raw = raw[:22] + bytes([raw[22] & ~0x08]) + raw[23:]
    offsets = [record.offset for record in open_batch(memoryview(raw), A, max_bytes=ENOUGH)]
    return {offset: content for offset, content in zip(offsets, contents(raw), strict=True) if offset >= position}


MOST_POSITION = 12
KINDS = ("data", "data", "data", "stamped", "old", "marker", "aborted", "gap", "damaged")
written = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 1, 1, 2]),
        st.integers(-(1 << 40), 1 << 40),
        texts,
        texts,
        st.lists(st.tuples(st.binary(max_size=20), texts), max_size=3),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
sources = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from([*ENCODERS, "lz4", "lz4", "lz4"]),
        st.sampled_from([-1, 0, 1_700_000_000_000, (1 << 62) - 1, -(1 << 62)]),
        written,
    ),
    max_size=14,
)


def source_log(shape: Any) -> tuple[list[bytes], dict[int, bytes]]:
    """All batches, and by base offset those whose records are to be copied."""
    log, visible, at = [], {}, 0
    for kind, name, timestamp, lines in shape:
        if kind == "marker":
            log.append(marker(at, 1, 77))
            at += 1
            continue
        at += kind == "gap"
        deltas = (np.cumsum([step for step, *_ in lines]) - 1).tolist()
        codec, encode = ENCODERS[name]
        block = b"".join(full_record(delta, *rest) for delta, (_, *rest) in zip(deltas, lines, strict=True))
        attributes = codec | {"stamped": 0x08, "old": 0x40, "aborted": 0x10}.get(kind, 0)
        producer = {"producer_id": 8, "producer_epoch": 0, "base_sequence": 0} if kind == "aborted" else {}
        raw = batch(at, deltas=deltas, attributes=attributes, timestamp=timestamp, payload=encode(block), **producer)
        if kind == "damaged" and deltas[-1] + 1 == len(deltas) and at >= MOST_POSITION:
            raw = raw[:17] + bytes([raw[17] ^ 0xFF]) + raw[18:]
        visible.update({} if kind == "aborted" else {at: raw})
        log.append(raw)
        at += deltas[-1] + 1
    return log, visible


@pytest.mark.slow
@given(
    sources,
    st.sampled_from([None, 200, 2_000, 1 << 16]),
    st.sampled_from(list(LogAppendTimePolicy)),
    st.integers(0, MOST_POSITION),
    st.sampled_from([1, 1 << 21]),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_becomes_one_every_record_is_there_once_in_order_and_its_offset_leads_to_it(
    shape: Any, coalesce_bytes: int | None, policy: LogAppendTimePolicy, position: int, bytes_together: int
) -> None:
    log, visible = source_log(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuild_pipeline, "_MAX_PENDING_BYTES", bytes_together)
        made = copy(log, coalesce_bytes=coalesce_bytes, policy=policy, position=position, aborted=[(8, 0)])
    kept = {offset: record for raw in visible.values() for offset, record in records_of(raw, policy, position).items()}
    assert made.records == list(kept.values())
    assert all(made.record_at(offset) == content for offset, content in kept.items())
    assert all(raw in log for raw in made.sent if not verify_crc(memoryview(raw)))
    for raw in made.restamped:
        assert [record.offset for record in open_batch(memoryview(raw), A, max_bytes=ENOUGH)] == list(
            range(header(raw)["records_count"][0])
        )
        if verify_crc(memoryview(raw)):
            record_rules.check_batch(raw, CONFIGS, now_ms=0)
    data = [row for row in made.segments if row.kind is SegmentKind.DATA]
    assert sum(row.record_count for row in data) == len(kept)
    assert sum(row.batch_count for row in made.segments) == len(log) - sum(
        int(last) < position for last in made.index.last_offset
    )


def header(raw: bytes) -> Any:
    return index_batches(memoryview(raw)).headers


def small(base_offset: int, count: int = 2, name: str = "lz4", **changes: Any) -> bytes:
    codec, encode = ENCODERS[name]
    block = b"".join(record(delta, b"k", b"%d" % (base_offset + delta)) for delta in range(count))
    return batch(base_offset, count, attributes=codec, payload=encode(block), **changes)


def counts_of(made: Copy) -> list[int]:
    return [header(raw)["records_count"][0] for raw in made.sent]


def test_a_thousand_small_batches_of_a_codec_become_one_row_and_few_batches() -> None:
    made = copy([small(2 * n, timestamp=1_000 + n) for n in range(1_000)], coalesce_bytes=10_000)
    (row,) = made.segments
    assert (row.source_start, row.source_end, row.record_count) == (0, 2_000, 2_000)
    assert (row.batch_count, row.rebuilt_batch_count) == (1_000, 1_000)
    assert len(made.sent) == 3
    assert [record[0] for record in made.records] == [1_000 + n // 2 for n in range(2_000)]
    assert header(made.sent[0])["max_timestamp"][0] == 1_000 + counts_of(made)[0] // 2 - 1


def test_markers_and_aborted_data_between_them_keep_their_rows() -> None:
    aborted = batch(3, 1, attributes=0x10, producer_id=8, producer_epoch=0, base_sequence=0)
    made = copy([small(0), marker(2, 1, 7), aborted, marker(4, 0, 8), small(5), small(9)], aborted=[(8, 3)])
    assert counts_of(made) == [6]
    assert [(row.kind.value, row.source_start, row.source_end, row.target_start) for row in made.segments] == [
        ("data", 0, 2, FIRST_TARGET),
        ("commit", 2, 3, None),
        ("aborted", 3, 4, None),
        ("abort", 4, 5, None),
        ("data", 5, 7, FIRST_TARGET + 2),
        ("gap", 7, 9, None),
        ("data", 9, 11, FIRST_TARGET + 4),
    ]
    assert (made.outgoing.firsts.tolist(), made.outgoing.lasts.tolist()) == ([0], [5])


@pytest.mark.parametrize(
    "lonely",
    [
        small(2, name="zstd"),
        small(2, count=400),
        small(2)[:-1] + b"\xff",
        batch(2, 1, attributes=3, payload=b"no lz4 frame"),
        batch(2, 1, payload=b"no record"),
    ],
    ids=["another codec", "too large", "damaged", "not to be opened", "not to be read"],
)
def test_what_cannot_become_one_with_its_neighbours_is_sent_as_it_is_between_them(lonely: bytes) -> None:
    end = 2 + int.from_bytes(lonely[23:27], "big") + 1
    made = copy([small(0), lonely, small(end), small(end + 2)], coalesce_bytes=2_000)
    assert lonely in made.sent
    assert made.sent[0] == small(0)
    assert made.sent[1] == lonely
    assert [(row.source_start, row.source_end) for row in made.segments][-1] == (end if len(made.sent) == 3 else 0, end + 4)


def test_one_unreadable_batch_leaves_only_what_was_rewritten_with_it_as_it_was() -> None:
    bad = batch(4, 1, attributes=3, payload=ENCODERS["lz4"][1](b"no record"))
    made = copy([small(0), small(2), bad, small(5), small(7)])
    assert made.sent == [small(0), small(2), bad, small(5), small(7)]
    assert not made.outgoing.rewritten


def test_a_rebuild_in_reach_of_an_unreadable_batch_still_says_what_is_wrong() -> None:
    bad = batch(4, deltas=[0, 2], attributes=3, payload=ENCODERS["lz4"][1](b"no record"))
    with pytest.raises(CorruptBatchError, match=r"orders-3: .* base offset 4: .*record 0 of 2 cannot be read"):
        copy([small(0), small(2), bad])


def test_what_would_exceed_the_targets_limit_does_not_become_one() -> None:
    batches = [batch(n, 1, payload=record(0, value=bytes(100))) for n in range(20)]
    made = copy(batches, max_message_bytes=1_450)
    assert counts_of(made) == [12, 8]
    assert all(len(raw) <= 1_450 for raw in made.sent)


def test_what_the_codec_makes_too_large_is_cut_within_a_batch_and_every_offset_is_still_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance, log = random.Random(7), []
    for n in range(20):
        block = b"".join(record(delta, value=chance.randbytes(60 + n)) for delta in range(3))
        log.append(batch(3 * n, 3, attributes=3, payload=ENCODERS["lz4"][1](block)))
    monkeypatch.setattr(rebuild_pipeline, "most_bytes", lambda _limits: 5_000)
    made = copy(log, max_message_bytes=3_000)
    assert (len(made.sent), max(len(raw) for raw in made.sent) <= 3_000) == (2, True)
    assert max(len(batch_rewritten.parts) for batch_rewritten in made.outgoing.rewritten.values()) == 2
    kept = {offset: record for raw in log for offset, record in records_of(raw, LogAppendTimePolicy.KEEP, 0).items()}
    assert made.records == list(kept.values())
    assert all(made.record_at(offset) == content for offset, content in kept.items())
    assert sum(row.batch_count for row in made.segments) == len(log)


def test_times_too_far_apart_for_one_batch_stay_in_their_own() -> None:
    batches = [small(0, timestamp=(1 << 63) - 1), small(2, timestamp=-(1 << 63))]
    assert copy(batches).sent == batches


@pytest.mark.parametrize("name", ["fetch-codecs-4.4.0", "fetch-compacted-4.4.0"])
def test_captured_batches_become_one_without_losing_a_record(name: str) -> None:
    for captured in reads(name):
        log = [
            bytes(captured.bytes_of(i))
            for i in range(len(captured.index))
            if captured.admission.verdicts[i] in (Verdict.RAW, Verdict.REBUILD)
        ]
        made = copy(log, coalesce_bytes=1 << 20)
        kept = {offset: each for raw in log for offset, each in records_of(raw, LogAppendTimePolicy.KEEP, 0).items()}
        assert made.records == list(kept.values())
        assert all(made.record_at(offset) == each for offset, each in kept.items())


def test_find_small_asks_for_a_neighbour_that_is_sent() -> None:
    index = index_batches(view(small(0), marker(2, 1, 7), small(3), small(5, name="zstd"), small(7, 400)))
    limits = BatchLimits(
        max_message_bytes=ENOUGH,
        isolation_level=IsolationLevel.READ_COMMITTED,
        log_append_time=LogAppendTimePolicy.KEEP,
        coalesce_bytes=2_000,
    )
    verdicts = np.array([Verdict.RAW, Verdict.DROP_CONTROL, Verdict.RAW, Verdict.RAW, Verdict.RAW], np.int8)
    assert coalescing.find_small(index, verdicts, limits).tolist() == [True, False, True, False, False]


def cheaper(sizes_and_codecs: Sequence[tuple[int, int]]) -> list[bool]:
    """Return which batches of these sizes and codecs are coalesced where that is cheaper."""
    batches = [batch(n, 1, attributes=codec, payload=bytes(size - 61)) for n, (size, codec) in enumerate(sizes_and_codecs)]
    index = index_batches(view(*batches))
    limits = BatchLimits(
        max_message_bytes=ENOUGH,
        isolation_level=IsolationLevel.READ_COMMITTED,
        log_append_time=LogAppendTimePolicy.KEEP,
        coalesce_bytes=1 << 20,
        coalesces_where_cheaper=True,
    )
    is_small = coalescing.find_small(index, np.full(len(index), Verdict.RAW, np.int8), limits)
    return [bool(each) for each in is_small]


MOST = coalescing.CHEAPER_UP_TO_BYTES
FROM = coalescing.CHEAPER_FROM_BATCHES


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_where_only_savings_count_many_small_batches_of_a_cheap_codec_are_combined(codec: Codec) -> None:
    assert cheaper([(MOST[codec], codec)] * FROM) == [True] * FROM
    assert cheaper([(MOST[codec] + 1, codec)] * FROM) == [False] * FROM
    assert cheaper([(MOST[codec], codec)] * (FROM - 1)) == [False] * (FROM - 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_where_only_savings_count_batches_of_other_codecs_are_left_as_they_are(codec: Codec) -> None:
    assert not any(cheaper([(100, codec)] * 100))


def test_where_only_savings_count_the_median_of_each_codec_decides() -> None:
    small, large = (200, Codec.LZ4), (50_000, Codec.LZ4)
    assert cheaper([small, small, large] * FROM).count(True) == 3 * FROM
    assert not any(cheaper([small, large, large] * FROM))
    mixed = cheaper([(200, Codec.LZ4)] * FROM + [(200, Codec.ZSTD)] * FROM)
    assert mixed == [True] * FROM + [False] * FROM
