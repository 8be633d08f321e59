"""Record batches and message sets, from the index of a Fetch response to the batches that are sent."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
from tests.fuzz.hostile_batches import (
    WRAPPING,
    batches,
    captured_batches,
    closed,
    message_sets,
    opened_batches,
    responses,
    small_batches,
    with_right_checksum,
    with_right_checksums,
    with_right_message_checksums,
    wrappers,
)
from tests.fuzz.target import ORDERS_0, Target, chance_of
from tests.support.group_log import commit_batch, commit_key, commit_value
from tests.support.legacy_batches import wrapped
from tests.support.record_batches import marker
from tests.support.record_encoders import ENCODERS

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.groups.commit_table import CommitTable
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy
from shallow_mirror.wire import parse_marker, payload_crcs, verify_crc, verify_crcs
from shallow_mirror.wire.batches import Admission, BatchIndex, Verdict, admit, index_batches, kind_of, restamp
from shallow_mirror.wire.group_log import logged_records, read_commits
from shallow_mirror.wire.protocol import WireError
from shallow_mirror.wire.records import OPENED_FETCHES, convert_legacy, make_outgoing, open_batch, unpack_batch
from shallow_mirror.wire.records.rebuild import rebuild
from shallow_mirror.wire.records.record_layout import find_spans

FETCH_BYTES = 1 << 20
MAX_OPENED_BYTES = OPENED_FETCHES * FETCH_BYTES
REFUSALS = (CorruptBatchError, BatchRefusedError)


def index(data: bytes) -> BatchIndex:
    batch_index = index_batches(memoryview(data))
    assert 0 <= batch_index.consumed_bytes <= len(data)
    assert int(batch_index.size_bytes.sum()) == batch_index.consumed_bytes
    assert (
        len(payload_crcs(batch_index.headers))
        == len(verify_crcs(memoryview(data), batch_index.pos, batch_index.headers))
        == len(batch_index)
    )
    return batch_index


def indexed(data: bytes) -> None:
    index(data)


def markers(data: bytes) -> None:
    parse_marker(memoryview(data))


def group_log(data: bytes) -> None:
    """Every record, and then its key and value alone."""
    batch = unpack_batch(memoryview(data), ORDERS_0, max_bytes=MAX_OPENED_BYTES)
    commits = read_commits([batch, batch])
    assert len(commits) + commits.other_count == 2 * len(logged_records(memoryview(data), ORDERS_0, max_bytes=MAX_OPENED_BYTES))
    for row in commits.rows(0, len(commits)):
        table = CommitTable(lambda key: key.partition % 7 != 6)
        table.apply(0, [row], None if row[1] % 2 else 44)
        table.end_transaction(0, 44, is_committed=True)
        for entry in table:
            assert entry.newest.offset >= 0
            entry.newest.note()


def group_logs() -> list[bytes]:
    values = [commit_value(7, "of the app", version=version, tagged=[(3, b"x")]) for version in range(5)]
    records: list[tuple[bytes, bytes | None]] = [
        (commit_key("billing", "orders", number, number % 2), value) for number, value in enumerate(values)
    ]
    others = [(commit_key("billing", "orders", 3), None), (b"\x00\x02\x00\x07billing", b"metadata"), (b"\x00\x0b", b"")]
    return [commit_batch(3, [*records, *others]), commit_batch(9, records[:1], producer_id=44), commit_batch(0, [])]


def limits_of(data: bytes) -> BatchLimits:
    chance = chance_of(data)
    return BatchLimits(
        max_message_bytes=chance.choice([200, 2_000, 1 << 20]),
        isolation_level=chance.choice(list(IsolationLevel)),
        log_append_time=chance.choice(list(LogAppendTimePolicy)),
    )


def admitted(data: bytes, batch_index: BatchIndex, records: memoryview, position: int) -> Admission:
    chance = chance_of(data)
    bases = batch_index.headers["base_offset"].tolist() or [0]
    return admit(
        batch_index,
        records,
        topic_partition=ORDERS_0,
        position=position,
        range_end=chance.choice([*bases, 1 << 62]),
        aborted=[(chance.choice([7, -1, 1 << 62]), chance.choice(bases)) for _ in range(chance.randrange(4))],
        limits=limits_of(data),
    )


def position_of(data: bytes, batch_index: BatchIndex) -> int:
    chance = chance_of(data)
    offsets: list[int] = [0, *(batch_index.headers["base_offset"].tolist()), *(batch_index.last_offset.tolist())]
    return max(0, chance.choice(offsets))


def admission(data: bytes) -> None:
    batch_index, records = index(data), memoryview(bytearray(data))
    position = position_of(data, batch_index)
    made = admitted(data, batch_index, records, position)
    assert len(made.verdicts) == len(batch_index)
    assert made.next_position >= position
    assert [refusal.index for refusal in made.refusals] == np.flatnonzero(made.verdicts == Verdict.REFUSE).tolist()
    assert [rebuild.index for rebuild in made.rebuilds] == np.flatnonzero(made.verdicts == Verdict.REBUILD).tolist()
    for i in np.flatnonzero(made.verdicts != Verdict.BEYOND).tolist():
        kind_of(made, i)


def copied(data: bytes) -> None:
    """All that a task does with a partition's part of a response. What is refused by its header is not sent."""
    batch_index, records = index(data), memoryview(bytearray(data))
    position = position_of(data, batch_index)
    made = admitted(data, batch_index, records, position)
    outgoing = make_outgoing(
        batch_index,
        records,
        made,
        topic_partition=ORDERS_0,
        position=position,
        limits=limits_of(data),
        max_opened_bytes=MAX_OPENED_BYTES,
    )
    chosen = outgoing.chosen
    sent = outgoing.index
    was_right = verify_crcs(outgoing.records, sent.pos[chosen], sent.headers[chosen])
    following = restamp(outgoing.records, sent, chosen, producer_id=7, producer_epoch=1, first_sequence=2**31 - 3)
    assert 0 <= following < 1 << 31
    after = index_batches(outgoing.records)
    assert len(after) == len(sent)
    assert (after.headers["base_offset"][chosen] == 0).all()
    assert np.array_equal(verify_crcs(outgoing.records, after.pos[chosen], after.headers[chosen]), was_right)
    assert not (after.headers["attributes"][chosen] & ~0x17).any()


def coalesced(data: bytes) -> None:
    """Check that coalescing keeps records and their order, and that a batch that is not opened is sent as without it."""
    data = with_right_checksums(data)
    alone = sent_of(data, None)
    assert sent_of(data, chance_of(data).choice([200, 2_000, 1 << 16])) == alone


def sent_of(data: bytes, coalesce_bytes: int | None) -> list[object]:
    """Return records of batches that can be read, and whole batches that cannot, as the target gets them."""
    batch_index, records = index(data), memoryview(bytearray(data))
    position, limits = position_of(data, batch_index), replace(limits_of(data), coalesce_bytes=coalesce_bytes)
    outgoing = make_outgoing(
        batch_index,
        records,
        admitted(data, batch_index, records, position),
        topic_partition=ORDERS_0,
        position=position,
        limits=limits,
        max_opened_bytes=MAX_OPENED_BYTES,
    )
    sent, chosen = outgoing.index, outgoing.chosen
    restamp(outgoing.records, sent, chosen, producer_id=7, producer_epoch=1, first_sequence=0)
    reported: list[object] = []
    for start, size in zip(sent.pos[chosen].tolist(), sent.size_bytes[chosen].tolist(), strict=True):
        raw = outgoing.records[start : start + size]
        try:
            read = list(open_batch(raw, ORDERS_0, max_bytes=MAX_OPENED_BYTES))
        except REFUSALS:
            reported.append(bytes(raw))
        else:
            reported += [(record.timestamp_ms, record.key, record.value, record.headers) for record in read]
    return reported


def opened(data: bytes) -> None:
    """One batch: as many records as it says, offsets rising, and the arrays tell the same."""
    raw = memoryview(with_right_checksum(data))
    offsets = []
    try:
        offsets = [record.offset for record in open_batch(raw, ORDERS_0, max_bytes=MAX_OPENED_BYTES)]
    finally:
        unpacked = unpack_batch(raw, ORDERS_0, max_bytes=MAX_OPENED_BYTES)
        reported = [
            offset for spans in find_spans(unpacked) for offset in (spans.offset_delta + unpacked.header["base_offset"]).tolist()
        ]
    assert reported == offsets
    assert len(offsets) == unpacked.header["records_count"]
    assert all(before < after for before, after in itertools.pairwise(offsets))


def rebuilt(raw: bytes) -> None:
    """Every batch is whole, has a right CRC and offsets without holes; no record from the position on is lost or changed."""
    header = index_batches(memoryview(raw)).headers
    base = int(header["base_offset"][0]) if len(header) else 0
    position = base + chance_of(raw).choice([0, 0, 1, 5, -7])
    limits = limits_of(raw)
    made = rebuild(memoryview(raw), ORDERS_0, position=position, limits=limits, max_opened_bytes=MAX_OPENED_BYTES)
    rebuilt = index(b"".join(made.batches))
    assert (rebuilt.stop, rebuilt.headers["records_count"].tolist()) == (None, list(made.counts))
    assert sum(made.counts) == len(made.offsets)
    assert all(verify_crc(memoryview(batch)) and len(batch) <= limits.max_message_bytes for batch in made.batches)
    contents = []
    for batch in made.batches:
        records = list(open_batch(memoryview(batch), ORDERS_0, max_bytes=MAX_OPENED_BYTES))
        assert [record.offset for record in records] == list(range(len(records)))
        contents += [(record.timestamp_ms, record.key, record.value, record.headers) for record in records]
    keeps = limits.log_append_time is LogAppendTimePolicy.KEEP
    source = with_right_checksum(raw[:22] + bytes([raw[22] & (0xFF if keeps else ~0x08)]) + raw[23:])
    kept = [
        record for record in open_batch(memoryview(source), ORDERS_0, max_bytes=MAX_OPENED_BYTES) if record.offset >= position
    ]
    assert made.offsets.tolist() == [record.offset for record in kept]
    assert contents == [(record.timestamp_ms, record.key, record.value, record.headers) for record in kept]


def rebuilt_behind_the_checksum(data: bytes) -> None:
    rebuilt(with_right_checksum(data))


def rebuilt_behind_the_codec(name: str, data: bytes) -> None:
    rebuilt(closed(name, data))


def converted(data: bytes) -> None:
    """Whole batches of magic 2 with right CRCs in front of the failure, in the order of their offsets."""
    made = convert_legacy(memoryview(bytearray(data)), ORDERS_0, max_opened_bytes=MAX_OPENED_BYTES)
    assert made.failure is None or isinstance(made.failure, REFUSALS), repr(made.failure)
    index(bytes(made.records))


def converted_behind_the_checksums(data: bytes) -> None:
    converted(with_right_message_checksums(data))


def converted_behind_the_codec(name: str, data: bytes) -> None:
    """Check that the content of a wrapper becomes one good batch, or is refused."""
    for magic in (0, 1):
        raw = wrapped(name, with_right_message_checksums(data), chance_of(data).choice([0, 16, 1 << 40]), magic=magic)
        made = convert_legacy(memoryview(bytearray(raw)), ORDERS_0, max_opened_bytes=MAX_OPENED_BYTES)
        assert made.failure is None or isinstance(made.failure, REFUSALS), repr(made.failure)
        if made.failure is None:
            (pos,) = index(bytes(made.records)).pos.tolist()
            assert verify_crc(made.records[pos:])
            records = list(open_batch(made.records, ORDERS_0, max_bytes=MAX_OPENED_BYTES))
            assert len(records) >= 1
        else:
            assert len(made.records) == 0


BATCHES = [
    Target("batch index", responses(), indexed),
    Target("control batch", [marker(3, 0, 7), marker(9, 1, 1 << 60)], markers, (ValueError,)),
    Target("admission", responses(), admission),
    Target("copy", responses(), copied, REFUSALS),
    Target("copy of small batches", small_batches(), coalesced, REFUSALS),
    Target("log of groups", group_logs(), group_log, (*REFUSALS, WireError)),
    Target("open batch", [batch for name in ENCODERS for batch in batches(name)], opened, REFUSALS),
    Target("rebuild", captured_batches(), rebuilt, REFUSALS),
    *(Target(f"rebuild {name}", batches(name), rebuilt_behind_the_checksum, REFUSALS) for name in ENCODERS),
    *(
        Target(f"rebuild records in {name}", opened_batches(), partial(rebuilt_behind_the_codec, name), REFUSALS)
        for name in ENCODERS
    ),
    Target("old formats", [*message_sets(), *wrappers()], converted),
    Target("old formats, right CRCs", [*message_sets(), *wrappers()], converted_behind_the_checksums),
    *(Target(f"old formats in {name}", message_sets()[:2], partial(converted_behind_the_codec, name)) for name in WRAPPING),
]
