"""Committed offsets as coordinators log them: every version is read, and nothing else is taken for one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st
from tests.support.group_log import commit_batch, commit_key, commit_value

from shallow_mirror.errors import CorruptBatchError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.group_log import (
    CommitKey,
    CommitValue,
    UnknownCommitError,
    key_type,
    logged_records,
    parse_commit_key,
    parse_commit_value,
    parse_committed_offset,
)
from shallow_mirror.wire.protocol import WireError
from shallow_mirror.wire.records import open_batch

LOG = TopicPartition("__consumer_offsets", 7)
_NAMES = st.text(max_size=30)
_LONGS = st.integers(-(2**63), 2**63 - 1)


@given(_NAMES, _NAMES, st.integers(0, 2**31 - 1), st.sampled_from([0, 1]))
def test_a_key_is_read_as_it_was_written(group: str, topic: str, partition: int, record_type: int) -> None:
    key = commit_key(group, topic, partition, record_type)
    assert parse_commit_key(key) == CommitKey(group, topic, partition)
    assert key_type(key) == record_type
    for size in range(len(key)):
        with pytest.raises(WireError):
            parse_commit_key(key[:size])


@pytest.mark.parametrize("record_type", [2, 3, 8, 15, 20, 99, -1])
def test_records_of_other_types_are_no_committed_offsets(record_type: int) -> None:
    """Group metadata (2), groups of KIP-848 (3 and above), share and streams groups, and those of the future."""
    assert parse_commit_key(struct.pack(">h", record_type) + b"anything") is None


@pytest.mark.slow
@given(
    _LONGS,
    _NAMES,
    _LONGS,
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 99), st.binary(max_size=20)), max_size=3, unique_by=lambda tag: tag[0]),
)
def test_every_version_of_a_value_is_read(
    offset: int, metadata: str, at_ms: int, version: int, tagged: list[tuple[int, bytes]]
) -> None:
    value = commit_value(offset, metadata, at_ms, version=version, leader_epoch=9, expires_at_ms=5, tagged=tagged)
    assert parse_commit_value(value) == CommitValue(offset, metadata, at_ms)
    assert parse_committed_offset(value) == offset
    for size in range(len(value)):
        with pytest.raises(WireError):
            parse_commit_value(value[:size])
    with pytest.raises(WireError):
        parse_commit_value(value + b"\x00")


@pytest.mark.parametrize("version", [5, 99, -1])
def test_a_version_of_the_future_is_named(version: int) -> None:
    value = struct.pack(">h", version) + commit_value(7)[2:]
    for parse in (parse_commit_value, parse_committed_offset):
        with pytest.raises(UnknownCommitError, match=f"version {version}, where 0 to 4 are known"):
            parse(value)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.binary(max_size=300), st.none() | st.binary(max_size=300)), max_size=20),
    st.integers(0, 2**40),
)
def test_records_are_those_of_the_careful_reader(records: list[tuple[bytes, bytes | None]], base_offset: int) -> None:
    data = memoryview(commit_batch(base_offset, records))
    theirs = [
        (record.offset, record.timestamp_ms, record.key, record.value) for record in open_batch(data, LOG, max_bytes=1 << 20)
    ]
    assert [tuple(record) for record in logged_records(data, LOG, max_bytes=1 << 20)] == theirs


def test_deltas_and_lengths_of_one_byte_and_of_more_are_read_alike() -> None:
    sizes = (0, 62, 63, 64, 65, 9_000)
    records = [(b"k" * sizes[n % 6], None if n % 5 == 0 else b"v" * sizes[n % 4]) for n in range(130)]
    data = memoryview(commit_batch(7, records))
    theirs = [(record.offset, record.key, record.value) for record in open_batch(data, LOG, max_bytes=1 << 24)]
    ours = logged_records(data, LOG, max_bytes=1 << 24)
    assert [(record.offset, record.key, record.value) for record in ours] == theirs
    assert [(record.key, record.value) for record in ours] == records


def test_a_damaged_batch_is_named() -> None:
    data = commit_batch(40, [(b"key", b"value"), (b"other", None)])
    for size in range(61, len(data)):
        with pytest.raises(CorruptBatchError, match="__consumer_offsets"):
            logged_records(memoryview(data[:size]), LOG, max_bytes=1 << 20)
    with pytest.raises(CorruptBatchError, match="3 bytes behind its 2 records"):
        logged_records(memoryview(data + b"abc"), LOG, max_bytes=1 << 20)
