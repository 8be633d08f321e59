"""Bytes of a real MirrorMaker 2 (4.3.0) and its Connect workers, and what is not theirs."""

from __future__ import annotations

import pytest

from shallow_mirror.mirror_maker.running.internal_records import (
    CopiedOffset,
    OffsetSync,
    heartbeat_key,
    heartbeat_value,
    parse_copied_offset,
    parse_offset_sync,
)
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import WireError

SYNC_KEY = b"\x00\x06orders\x00\x00\x00\x01"
SYNC_VALUE = b"\x00\x00\x00\x00\x00\x00\x00e\x00\x00\x00\x00\x00\x00\x00f"
OFFSET_KEY = b'["MirrorSourceConnector",{"cluster":"east","partition":3,"topic":"orders"}]'


def test_pairs_of_offsets_are_read() -> None:
    assert parse_offset_sync(SYNC_KEY, SYNC_VALUE) == OffsetSync(TopicPartition("orders", 1), 101, 102)
    assert parse_offset_sync(SYNC_KEY, None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, SYNC_VALUE), (b"", SYNC_VALUE), (SYNC_KEY[:-1], SYNC_VALUE), (SYNC_KEY, b"x"), (b"\xff\xff", SYNC_VALUE)],
)
def test_other_records_are_no_pairs(key: bytes | None, value: bytes) -> None:
    with pytest.raises(WireError):
        parse_offset_sync(key, value)


def test_offsets_of_connect_are_read_and_those_of_other_connectors_are_not() -> None:
    orders = TopicPartition("orders", 3)
    assert parse_copied_offset(OFFSET_KEY, b'{"offset":1199}') == CopiedOffset("east", orders, 1199)
    assert parse_copied_offset(OFFSET_KEY, None) == CopiedOffset("east", orders, None)
    heartbeats = b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"east","targetClusterAlias":"west"}]'
    for key in (heartbeats, b'["file",{"filename":"x"}]', b"\x00", None, b"[]"):
        assert parse_copied_offset(key, b'{"offset":0}') is None


def test_heartbeats_are_those_of_mirror_maker() -> None:
    assert heartbeat_key("east", "west") == b"\x00\x04east\x00\x04west"
    assert heartbeat_value(1795758936103) == b"\x00\x00\x00\x00\x01\xa2\x1b\x92\xd0'"
