"""ListOffsets as arrays says the same as kafka-python's objects, and takes no hostile answer for one."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from shallow_mirror.types import IsolationLevel
from shallow_mirror.wire.protocol import WireError, list_offsets

VERSION = list_offsets.API_VERSION
_PARTITIONS = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=4)
ENTRY = ListOffsetsResponse[VERSION].ListOffsetsTopicResponse.ListOffsetsPartitionResponse


def response(topics: dict[str, list[tuple[int, int]]], error_code: int = 0) -> bytes:
    """(partition, offset) by topic; the error is the last partition's. Behind the length of the frame."""
    response = ListOffsetsResponse[VERSION]
    made = [
        response.ListOffsetsTopicResponse(
            name=name,
            partitions=[
                ENTRY(partition_index=partition, error_code=0, timestamp=-1, offset=offset, leader_epoch=3)
                for partition, offset in offsets
            ],
        )
        for name, offsets in topics.items()
    ]
    if error_code:
        made[-1].partitions[-1].error_code = error_code
    return b"\x00\x00\x00\x07\x00" + bytes(response(throttle_time_ms=0, topics=made).encode())


@pytest.mark.slow
@pytest.mark.parametrize("isolation", IsolationLevel)
@given(topic_partitions=_PARTITIONS)
def test_a_request_is_the_bytes_of_another_client(isolation: IsolationLevel, topic_partitions: dict[str, list[int]]) -> None:
    request = ListOffsetsRequest[VERSION]
    topic = request.ListOffsetsTopic
    theirs = request(
        replica_id=-1,
        isolation_level=1 if isolation is IsolationLevel.READ_COMMITTED else 0,
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
                    for partition in partitions
                ],
            )
            for name, partitions in topic_partitions.items()
        ],
    )
    theirs.with_header(7, "client")
    ours = list_offsets.build_header(7, "client") + list_offsets.build_latest_body(topic_partitions, isolation)
    assert ours == bytes(theirs.encode(framed=False, header=True))


@pytest.mark.slow
@given(
    st.dictionaries(st.text("abc", max_size=3), st.lists(st.tuples(st.integers(0, 99), st.integers(-1, 2**63 - 1)), max_size=4))
)
def test_a_response_is_read_as_it_was_written(topics: dict[str, list[tuple[int, int]]]) -> None:
    actual = list_offsets.parse_offsets(memoryview(response(topics)))
    assert actual is not None
    assert [
        (name, list(zip(entries["partition"].tolist(), entries["offset"].tolist(), strict=True))) for name, entries in actual
    ] == list(topics.items())


def test_a_response_with_an_error_is_no_plain_one() -> None:
    assert list_offsets.parse_offsets(memoryview(response({"a": [(0, 5)], "b": [(0, 5), (1, 6)]}, error_code=6))) is None


@given(st.data())
def test_whatever_else_comes_is_refused(data: st.DataObject) -> None:
    whole = response({"a": [(0, 5), (1, 2)], "b": [(3, 4)]})
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        list_offsets.parse_offsets(memoryview(whole[:cut]))
    with pytest.raises(WireError, match="behind an answer"):
        list_offsets.parse_offsets(memoryview(whole + b"\x00"))
