"""Committed offsets of many batches at once, against the reader of single records."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st
from tests.support.group_log import commit_batch, commit_key, commit_value
from tests.support.record_batches import batch, record

from shallow_mirror.errors import CorruptBatchError, OffsetDeltasError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.group_log import (
    CommitColumns,
    UnknownCommitError,
    parse_commit_key,
    parse_commit_value,
    read_commits,
)
from shallow_mirror.wire.protocol import WireError
from shallow_mirror.wire.records import open_batch, record_layout, unpack_batch

LOG = TopicPartition("__consumer_offsets", 7)
TOPIC_ID = (0, bytes(range(16)))
KEY = commit_key("billing", "orders", 0)

_VALUES = st.none() | st.builds(
    commit_value,
    st.integers(-1, 2**63 - 1),
    st.text(max_size=200),
    st.integers(0, 2**41),
    version=st.integers(0, 4),
    leader_epoch=st.integers(-1, 9),
    tagged=st.sampled_from([(), (TOPIC_ID,), (TOPIC_ID, (1, b"later")), ((1, bytes(16)),), ((0, bytes(15)),)]),
)
_RECORDS = st.one_of(
    st.tuples(st.builds(commit_key, st.text(max_size=60), st.text(max_size=60), st.integers(0, 2**31 - 1)), _VALUES),
    st.tuples(st.builds(commit_key, st.text(max_size=9), st.text(max_size=9), st.just(3), st.just(0)), _VALUES),
    st.tuples(st.integers(2, 300).map(lambda number: struct.pack(">h", number) + b"other"), st.none() | st.binary(max_size=90)),
    st.tuples(st.sampled_from([b"", b"\x00"]), st.none()),
)


def read(batches: Sequence[bytes]) -> CommitColumns:
    return read_commits([unpack_batch(memoryview(data), LOG, max_bytes=1 << 20) for data in batches])


@pytest.mark.slow
@given(st.lists(st.tuples(st.lists(_RECORDS, max_size=12), st.integers(0, 2**41)), max_size=6))
def test_commits_are_those_of_the_reader_of_single_records(groups: list[tuple[list[tuple[bytes, bytes | None]], int]]) -> None:
    batches, base_offset = [], 5
    for records, timestamp in groups:
        batches.append(commit_batch(base_offset, records, timestamp=timestamp))
        base_offset += len(records)
    expected, ends, other_count = [], [], 0
    for data in batches:
        for opened in open_batch(memoryview(data), LOG, max_bytes=1 << 20):
            key, value = bytes(opened.key or b""), None if opened.value is None else bytes(opened.value)
            if len(key) < 2 or parse_commit_key(key) is None:
                other_count += 1
                continue
            parsed = None if value is None else parse_commit_value(value)
            offset, metadata = (-1, "") if parsed is None else (parsed.offset, parsed.metadata)
            expected.append((key, opened.offset, opened.timestamp_ms, offset, metadata))
        ends.append(len(expected))
    commits = read(batches)
    ours = [
        (key, logged_at, at_ms, offset, "" if value is None else parse_commit_value(value).metadata)
        for key, logged_at, at_ms, offset, value in commits.rows(0, len(commits))
    ]
    assert (ours, commits.batch_ends, commits.other_count) == (expected, ends, other_count)


def test_deltas_and_lengths_of_one_byte_and_of_more_are_read_alike() -> None:
    sizes = (0, 1, 62, 63, 64, 65, 9_000)
    records: list[tuple[bytes, bytes | None]] = [
        (commit_key("g" * sizes[n % 7], "orders", n), None if n % 5 == 0 else commit_value(n, "m" * sizes[n % 6]))
        for n in range(130)
    ]
    payload = b"".join(record(delta, key, value, timestamp_delta=delta**3) for delta, (key, value) in enumerate(records))
    commits = read([batch(7, len(records), payload=payload, timestamp=1_000)])
    rows = list(commits.rows(0, len(commits)))
    assert [row[0] for row in rows] == [key for key, _ in records]
    assert [row[1] for row in rows] == list(range(7, 137))
    assert [row[2] for row in rows] == [1_000 + n**3 for n in range(130)]
    assert [row[3] for row in rows] == [-1 if value is None else n for n, (_, value) in enumerate(records)]
    assert [row[4] for row in rows] == [value if value is not None and n % 6 else None for n, (_, value) in enumerate(records)]


def test_the_metadata_of_a_value_is_kept_and_values_without_any_are_not() -> None:
    values = [commit_value(1), commit_value(2, "note"), None, commit_value(3, version=1)]
    commits = read([commit_batch(0, [(KEY, value) for value in values])])
    assert [value for *_, value in commits.rows(0, 4)] == [None, values[1], None, values[3]]


def test_of_version_4_as_well_only_values_with_metadata_or_unknown_tags_are_kept() -> None:
    plain = [commit_value(1, version=4), commit_value(2, version=4, tagged=[TOPIC_ID])]
    kept = [
        commit_value(3, "n", version=4),
        commit_value(4, "n", version=4, tagged=[TOPIC_ID]),
        commit_value(5, version=4, tagged=[(1, bytes(16))]),
        commit_value(6, version=4, tagged=[(0, bytes(15))]),
        commit_value(7, version=4, tagged=[TOPIC_ID, (1, b"")]),
        commit_value(8, version=4) + b"\x00",
        commit_value(9, version=4, tagged=[TOPIC_ID])[:-1],
    ]
    commits = read([commit_batch(0, [(KEY, value) for value in (*plain, *kept)])])
    assert [value for *_, value in commits.rows(0, 9)] == [None, None, *kept]
    assert commits.offsets == list(range(1, 10))


@pytest.mark.parametrize("version", [5, 99, -1])
def test_a_version_of_the_future_is_named(version: int) -> None:
    value = struct.pack(">h", version) + commit_value(7)[2:]
    with pytest.raises(UnknownCommitError, match=f"version {version}, where 0 to 4 are known"):
        read([commit_batch(0, [(KEY, commit_value(6)), (KEY, value)])])


def test_batches_that_compaction_has_emptied_have_no_commits() -> None:
    empty = batch(40, 0, payload=b"", producer_id=44, producer_epoch=0, last_offset_delta=3)
    commits = read([empty, commit_batch(50, [(KEY, commit_value(3))]), empty])
    assert (list(commits.rows(0, 1)), commits.batch_ends) == ([(KEY, 50, 1_000, 3, None)], [0, 1, 1])
    assert len(read([empty])) == len(read([])) == 0


def test_more_records_than_are_read_at_once_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_layout, "MOST_RECORDS", 30)
    batches = [commit_batch(100 * n, [(KEY, commit_value(n + at)) for at in range(70)]) for n in range(3)]
    commits = read(batches)
    assert commits.offsets == [n + at for n in range(3) for at in range(70)]
    assert (commits.batch_ends, commits.logged_at[-1]) == ([70, 140, 210], 269)


def test_a_value_that_is_too_short_for_an_offset_is_refused() -> None:
    for size in range(10):
        with pytest.raises(WireError):
            read([commit_batch(0, [(KEY, commit_value(7)[:size])])])


def test_a_damaged_batch_is_named_and_bytes_of_the_next_one_are_not_taken_for_its() -> None:
    good = commit_batch(0, [(KEY, commit_value(1))])
    data = commit_batch(40, [(KEY, commit_value(2)), (KEY, None)])
    for size in range(61, len(data)):
        with pytest.raises(CorruptBatchError, match="__consumer_offsets") as raised:
            read([good, data[:size], good])
        assert raised.value.base_offset == 40
    with pytest.raises(CorruptBatchError, match="3 bytes behind its 2 records"):
        read([good, data + b"abc", good])


@pytest.mark.parametrize("pos", range(61, 61 + 12))
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x03, 0x7F, 0x80, 0xFF])
def test_damage_of_a_record_changes_nothing_of_other_batches(pos: int, byte: int) -> None:
    data = bytearray(commit_batch(40, [(KEY, commit_value(2)), (KEY, None)]))
    data[pos] = byte
    try:
        commits = read([bytes(data), commit_batch(50, [(KEY, commit_value(3))])])
    except (CorruptBatchError, OffsetDeltasError, WireError):
        return
    start, end = commits.batch_ends
    assert list(commits.rows(start, end)) == [(KEY, 50, 1_000, 3, None)]
