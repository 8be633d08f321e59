"""OffsetCommit and OffsetFetch without objects say the same as kafka-python's, and take no hostile answer for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchResponse

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import WireError, group_offsets
from shallow_mirror.wire.protocol.group_offsets import FetchedOffset, GroupOffsets

_HEADER = b"\x00\x00\x00\x07\x00"
_TEXTS = st.sampled_from(["", "note", "ä" * 70, "m" * 200])
_OFFSETS = st.dictionaries(
    st.builds(TopicPartition, st.text("ab", min_size=1, max_size=2), st.integers(0, 2**31 - 1)),
    st.tuples(st.integers(0, 2**63 - 1), _TEXTS),
    max_size=8,
)
_FETCHED = st.dictionaries(
    st.text("ab", max_size=2),
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(-1, 2**63 - 1), st.none() | _TEXTS, st.sampled_from([0, 88, -1])), max_size=4
    ),
    max_size=3,
)
ORDERS = {TopicPartition("orders", 0): (5, ""), TopicPartition("orders", 1): (6, "note"), TopicPartition("refunds", 0): (7, "")}


def _by_topic(offsets: Mapping[TopicPartition, Any]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for topic_partition in offsets:
        topics.setdefault(topic_partition.topic, []).append(topic_partition)
    return topics


def their_request(group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bytes:
    request = OffsetCommitRequest[8]
    topic = request.OffsetCommitRequestTopic
    theirs = request(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.OffsetCommitRequestPartition(
                        partition_index=key.partition,
                        committed_offset=offsets[key][0],
                        committed_leader_epoch=-1,
                        committed_metadata=offsets[key][1],
                    )
                    for key in keys
                ],
            )
            for name, keys in _by_topic(offsets).items()
        ],
    )
    theirs.with_header(7, "client")
    return bytes(theirs.encode(framed=False, header=True))


def commit_response(codes: Mapping[TopicPartition, int], throttle_ms: int = 0) -> memoryview:
    response = OffsetCommitResponse[8]
    topic = response.OffsetCommitResponseTopic
    topics = [
        topic(
            name=name,
            partitions=[
                topic.OffsetCommitResponsePartition(partition_index=key.partition, error_code=codes[key]) for key in keys
            ],
        )
        for name, keys in _by_topic(codes).items()
    ]
    return memoryview(_HEADER + bytes(response(throttle_time_ms=throttle_ms, topics=topics).encode()))


def fetch_response(groups: Mapping[str, tuple[int, Mapping[str, Sequence[tuple[int, int, str | None, int]]]]]) -> bytes:
    """By group: the error code, and (partition, offset, metadata, error code) by topic."""
    response = OffsetFetchResponse[8]
    group = response.OffsetFetchResponseGroup
    topic = group.OffsetFetchResponseTopics
    made = [
        group(
            group_id=group_id,
            error_code=error_code,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.OffsetFetchResponsePartitions(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_leader_epoch=3,
                            metadata=metadata,
                            error_code=code,
                        )
                        for partition, offset, metadata, code in offsets
                    ],
                )
                for name, offsets in topics.items()
            ],
        )
        for group_id, (error_code, topics) in groups.items()
    ]
    return _HEADER + bytes(response(throttle_time_ms=9, groups=made).encode())


@pytest.mark.slow
@given(st.text(max_size=200), _OFFSETS)
def test_a_request_is_the_bytes_of_another_client(group: str, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
    ours = group_offsets.build_commit_header(7, "client") + group_offsets.build_commit_request(group, offsets).body
    assert ours == their_request(group, offsets)


def test_a_request_is_these_bytes() -> None:
    request = group_offsets.build_commit_request("app", {TopicPartition("t", 1): (258, ""), TopicPartition("t", 2): (3, "n")})
    assert group_offsets.build_commit_header(7, "me").hex(" ") == "00 08 00 08 00 00 00 07 00 02 6d 65 00"
    assert request.body.hex(" ") == (
        "04 61 70 70 ff ff ff ff 01 00 02 02 74 03 "
        "00 00 00 01 00 00 00 00 00 00 01 02 ff ff ff ff 01 00 "
        "00 00 00 02 00 00 00 00 00 00 00 03 ff ff ff ff 02 6e 00 00 00"
    )
    assert request.accepted.hex(" ") == "02 02 74 03 00 00 00 01 00 00 00 00 00 00 02 00 00 00 00 00"


@pytest.mark.slow
@given(_OFFSETS, st.sampled_from([0, 40]))
def test_the_response_that_accepts_all_is_known(offsets: dict[TopicPartition, tuple[int, str]], throttle_ms: int) -> None:
    request = group_offsets.build_commit_request("app", offsets)
    assert group_offsets.is_accepted(request, commit_response(dict.fromkeys(offsets, 0), throttle_ms))


def test_a_response_with_an_error_or_of_anything_else_accepts_nothing() -> None:
    request, accepted = group_offsets.build_commit_request("app", ORDERS), dict.fromkeys(ORDERS, 0)
    first, *others = ORDERS
    for key in ORDERS:
        for code in (1, 16, 25, -1):
            assert not group_offsets.is_accepted(request, commit_response(accepted | {key: code}))
        assert not group_offsets.is_accepted(request, commit_response({other: 0 for other in ORDERS if other != key}))
    assert not group_offsets.is_accepted(request, commit_response(dict.fromkeys((*others, first), 0)))
    whole = bytes(commit_response(accepted))
    for size in range(len(whole)):
        assert not group_offsets.is_accepted(request, memoryview(whole[:size]))
    assert not group_offsets.is_accepted(request, memoryview(whole + b"\x00"))
    assert not group_offsets.is_accepted(request, memoryview(whole[:4] + b"\x01" + whole[5:]))


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=3), st.tuples(st.sampled_from([0, 16, 30]), _FETCHED), max_size=4))
def test_offsets_of_groups_are_read_as_they_were_written(groups: Any) -> None:
    assert group_offsets.parse_offsets_of_groups(memoryview(fetch_response(groups))) == {
        group: GroupOffsets(error_code, [FetchedOffset(name, *offset) for name, offsets in topics.items() for offset in offsets])
        for group, (error_code, topics) in groups.items()
    }


def test_tagged_fields_behind_an_offset_are_passed_over() -> None:
    for metadata in ("", "note"):
        whole = fetch_response({"app": (0, {"t": [(0, 5, metadata, 0), (1, 6, metadata, 0)]})})
        end = whole.index(b"\x00\x00\x00\x01\x00") - 1  # of the first offset: the number of its tagged fields
        tagged = whole[:end] + b"\x01\x05\x03abc" + whole[end + 1 :]
        parsed = group_offsets.parse_offsets_of_groups(memoryview(tagged))
        assert parsed == group_offsets.parse_offsets_of_groups(memoryview(whole))


@given(st.data())
def test_whatever_else_comes_is_refused(data: st.DataObject) -> None:
    whole = fetch_response({"app": (0, {"t": [(0, 5, "", 0), (1, 6, "note", 0)]}), "other": (16, {})})
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        group_offsets.parse_offsets_of_groups(memoryview(whole[:cut]))
    with pytest.raises(WireError, match="behind an answer"):
        group_offsets.parse_offsets_of_groups(memoryview(whole + b"\x00"))
