"""Requests equal kafka-python's encoding byte for byte; its decoder's responses are ours; hostile frames are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from tests.support.record_batches import batch
from tests.support.wire_responses import A_UUID, fetch_response, leader_fetch_response, produce_response

from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.protocol import (
    ProduceFrames,
    WireError,
    build_leader_fetch_request,
    parse_leader_fetch_response,
    parse_produce_response,
)
from shallow_mirror.wire.protocol.fetch import (
    API_VERSION,
    API_VERSION_BY_ID,
    API_VERSION_OF_LEADER,
    NO_REPLICA,
    FetchPartition,
    TopicNames,
    build_fetch_request,
    parse_fetch_response,
    topic_names,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("long.topic-name", 0)


A_ID = "dG9waWMgb2YgYSB0ZXN0IQ"


def plain_response(
    *,
    error_code: int = 0,
    message: str | None = None,
    throttle_ms: int = 0,
    appended_at_ms: int = -1,
    log_start: int = 0,
    first_offset: int = 0,
    topic_partitions: Sequence[TopicPartition],
) -> memoryview:
    """Every batch appended at `first_offset` and 10 times its partition, the last one answered with `error_code`."""
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse
    names = dict.fromkeys(topic_partition.topic for topic_partition in topic_partitions)
    response = ProduceResponse[9](
        responses=[
            topic(
                name=name,
                partition_responses=[
                    partition(
                        index=topic_partition.partition,
                        error_code=error_code if topic_partition is topic_partitions[-1] else 0,
                        base_offset=first_offset + 10 * topic_partition.partition,
                        log_append_time_ms=appended_at_ms,
                        log_start_offset=log_start,
                        record_errors=[],
                        error_message=message if topic_partition is topic_partitions[-1] else None,
                    )
                    for topic_partition in topic_partitions
                    if topic_partition.topic == name
                ],
            )
            for name in names
        ],
        throttle_time_ms=throttle_ms,
    )
    return memoryview((7).to_bytes(4, "big") + b"\x00" + bytes(response.encode()))


@pytest.mark.parametrize("version", [API_VERSION, API_VERSION_BY_ID])
def test_a_fetch_request_is_what_kafka_python_encodes(version: int) -> None:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition

    def expected(topic_partition: TopicPartition, epoch: int, offset: int, size: int, last: int) -> Any:
        return partition(
            partition=topic_partition.partition,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=last,
            log_start_offset=-1,
            partition_max_bytes=size,
        )

    request = FetchRequest[version](
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(topic="a", topic_id=A_UUID, partitions=[expected(A0, 3, 10, 100, -1), expected(A1, -1, 0, 200, 2)]),
            topic(topic=B0.topic, topic_id=UUID(int=9), partitions=[expected(B0, 4, 2**40, 300, -1)]),
        ],
        forgotten_topics_data=[],
        rack_id="rack 1",
    )
    request.with_header(7, "me")
    partitions = [
        FetchPartition(A0, 3, 10, 100, topic_id=A_ID),
        FetchPartition(A1, -1, 0, 200, 2, topic_id=A_ID),
        FetchPartition(B0, 4, 2**40, 300, topic_id="AAAAAAAAAAAAAAAAAAAACQ"),
    ]
    built = build_fetch_request(
        7,
        "me",
        partitions,
        isolation=IsolationLevel.READ_COMMITTED,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        names=topic_names(partitions) if version == API_VERSION_BY_ID else None,
        rack="rack 1",
    )
    assert built == bytes(request.encode(framed=True, header=True))


def test_a_fetch_request_that_only_a_leader_answers_is_what_kafka_python_encodes() -> None:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition

    def expected(topic_partition: TopicPartition, epoch: int, offset: int, size: int) -> Any:
        return partition(
            partition=topic_partition.partition,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=size,
        )

    request = FetchRequest[API_VERSION_OF_LEADER](
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(topic="a", partitions=[expected(A0, 3, 10, 100), expected(A1, -1, 0, 200)]),
            topic(topic=B0.topic, partitions=[expected(B0, 4, 2**40, 300)]),
        ],
        forgotten_topics_data=[],
    )
    request.with_header(7, "me")
    built = build_leader_fetch_request(
        7,
        "me",
        [FetchPartition(A0, 3, 10, 100, topic_id=A_ID), FetchPartition(A1, -1, 0, 200), FetchPartition(B0, 4, 2**40, 300)],
        isolation=IsolationLevel.READ_UNCOMMITTED,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 24,
    )
    assert built == bytes(request.encode(framed=True, header=True))


@pytest.mark.parametrize("transactional_id", [None, "mirror-0"])
@pytest.mark.parametrize("size", [61, 16_000, 3_000_000])
def test_a_produce_request_is_what_kafka_python_encodes_and_payloads_stay_views(transactional_id: str | None, size: int) -> None:
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData
    payload = memoryview(bytearray(size))
    request = ProduceRequest[9](
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=3000,
        topic_data=[
            topic(name="a", partition_data=[partition(index=0, records=bytes(payload)), partition(index=1, records=bytes(70))]),
            topic(name=B0.topic, partition_data=[partition(index=0, records=bytes(61))]),
        ],
    )
    request.with_header(7, "me")
    small = [(A1, memoryview(bytes(70))), (B0, memoryview(bytes(61)))]
    frames = ProduceFrames("me", transactional_id, -1, 3000, [A0, *(topic_partition for topic_partition, _ in small)])
    parts = frames.build(7, [payload, *(raw for _, raw in small)])
    assert b"".join(parts) == bytes(request.encode(framed=True, header=True))
    assert any(part is payload for part in parts)


def test_a_partition_twice_in_a_produce_request_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        ProduceFrames("me", None, -1, 1, [A0, A0])


@pytest.mark.parametrize("topic_partitions", [[A1], [A0, A1], [A1, A0], [A1, B0, A0]])
def test_a_response_that_says_nothing_but_offsets_is_read_at_once_whatever_its_order(
    topic_partitions: list[TopicPartition],
) -> None:
    frames = ProduceFrames("me", "id", -1, 1, topic_partitions)
    for order in (topic_partitions, topic_partitions[::-1]):
        assert frames.parse_appended(plain_response(topic_partitions=order)) == (
            [10 * topic_partition.partition for topic_partition in topic_partitions],
            (),
        )


def test_append_times_and_log_starts_that_move_on_change_no_base_offset() -> None:
    frames = ProduceFrames("me", "id", -1, 1, [A1, B0, A0])
    for at_ms, log_start in ((-1, 0), (1_700_000_000_000, 0), (1_700_000_000_001, 7), (-1, 7)):
        response = plain_response(topic_partitions=[A0, A1, B0], appended_at_ms=at_ms, log_start=log_start)
        assert frames.parse_appended(response) == ([10, 0, 0], () if at_ms < 0 else [0, 1, 2])


def test_of_a_response_that_stamps_some_batches_the_right_ones_are_named() -> None:
    """A topic that stamps beside one that does not: entries of a response stand in its own order, not in the request's."""
    frames = ProduceFrames("me", "id", -1, 1, [A1, B0, A0])
    response = bytearray(plain_response(topic_partitions=[A0, A1, B0]))
    no_time = (-1).to_bytes(8, "big", signed=True)
    second = response.index(no_time, response.index(no_time) + 8)  # of A1
    response[second : second + 8] = (1_700_000_000_000).to_bytes(8, "big")
    assert frames.parse_appended(plain_response(topic_partitions=[A0, A1, B0])) == ([10, 0, 0], ())
    assert frames.parse_appended(memoryview(response)) == ([10, 0, 0], [0])
    parsed = parse_produce_response(memoryview(response)).partitions
    assert [answered.topic_partition for answered in parsed if answered.is_stamped] == [A1]


@pytest.mark.parametrize(
    "response",
    [
        plain_response(topic_partitions=[A0, A1, B0], error_code=6),
        plain_response(topic_partitions=[A0, A1, B0], message="but"),
        plain_response(topic_partitions=[A0, A1, B0], throttle_ms=9),
        plain_response(topic_partitions=[A0, A1]),
        plain_response(topic_partitions=[A0, A0, B0]),
        plain_response(topic_partitions=[A0, TopicPartition("a", 2), B0]),
        memoryview(produce_response()),
    ],
)
def test_any_other_answer_has_to_be_parsed(response: memoryview) -> None:
    frames = ProduceFrames("me", "id", -1, 1, [A0, A1, B0])
    assert frames.parse_appended(plain_response(topic_partitions=[A0, A1, B0])) == ([0, 10, 0], ())
    assert frames.parse_appended(response) is None
    for size in range(len(response)):
        assert frames.parse_appended(response[:size]) is None


def test_a_response_that_names_one_topic_twice_instead_of_another_has_to_be_parsed() -> None:
    few, many = [A0], [TopicPartition("b", partition) for partition in range(3)]
    response = bytes(plain_response(topic_partitions=[*few, *many]))
    entries = response[response.index(b"\x02b") : -5]
    twice = (response[:6] + 2 * entries)[: len(response) - 5] + response[-5:]
    frames = ProduceFrames("me", "id", -1, 1, [*few, *many])
    assert len(twice) == len(response)
    assert frames.parse_appended(memoryview(response)) == ([0, 0, 10, 20], ())
    assert frames.parse_appended(memoryview(twice)) is None


def stacked(*responses: memoryview) -> npt.NDArray[np.uint8]:
    return np.stack([np.frombuffer(response, np.uint8) for response in responses])


def test_several_responses_are_read_at_once_as_each_alone() -> None:
    frames = ProduceFrames("me", "id", -1, 1, [A1, B0, A0])
    responses = [plain_response(topic_partitions=[A0, A1, B0], first_offset=n, log_start=n) for n in (0, 5, 2**40)]
    assert frames.parse_all_appended(stacked(*responses)) is None, "the order of the broker is not known yet"
    alone = [frames.parse_appended(response) for response in responses]
    together = frames.parse_all_appended(stacked(*responses))
    assert together is not None
    assert [list(offsets) for offsets in zip(*together.base_offsets, strict=True)] == [
        appended.base_offsets for appended in alone if appended
    ]
    assert together == ([[10, 15, 10 + 2**40], [0, 5, 2**40], [0, 5, 2**40]], [])
    assert frames.success_bytes == len(responses[0])


@pytest.mark.parametrize("nth", [0, 2])
def test_of_several_responses_the_partitions_that_any_of_them_stamps_are_named(nth: int) -> None:
    frames = ProduceFrames("me", "id", -1, 1, [A1, B0, A0])
    plain = plain_response(topic_partitions=[A0, A1, B0])
    frames.parse_appended(plain)
    responses = [bytearray(plain) for _ in range(3)]
    no_time = (-1).to_bytes(8, "big", signed=True)
    second = responses[nth].index(no_time, responses[nth].index(no_time) + 8)  # of A1
    responses[nth][second : second + 8] = (1_700_000_000_000).to_bytes(8, "big")
    assert frames.parse_all_appended(stacked(*(memoryview(response) for response in responses))) == (
        [[10] * 3, [0] * 3, [0] * 3],
        [0],
    )


@pytest.mark.slow
@given(data=st.data())
def test_several_changed_responses_are_read_as_each_alone_or_left_to_be_parsed(data: st.DataObject) -> None:
    topic_partitions = [A0, A1, B0]
    responses = [bytearray(plain_response(topic_partitions=topic_partitions, first_offset=n)) for n in range(4)]
    for nth in data.draw(st.sets(st.integers(0, 3), max_size=2)):
        for at in data.draw(st.lists(st.integers(0, len(responses[nth]) - 1), max_size=3)):
            responses[nth][at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    frames = ProduceFrames("me", "id", -1, 1, topic_partitions)
    frames.parse_appended(plain_response(topic_partitions=topic_partitions))
    together = frames.parse_all_appended(stacked(*(memoryview(response) for response in responses)))
    alone = [frames.parse_appended(memoryview(response)) for response in responses]
    if together is None:
        assert None in alone
    else:
        assert [[*offsets] for offsets in zip(*together.base_offsets, strict=True)] == [
            each.base_offsets for each in alone if each
        ]
        assert {*together.stamped} == {i for each in alone if each for i in each.stamped}


@given(data=st.data())
def test_a_changed_response_is_read_at_once_or_left_to_be_parsed_but_never_crashes(data: st.DataObject) -> None:
    topic_partitions = [A0, A1, B0]
    hostile = bytearray(plain_response(topic_partitions=topic_partitions))
    for at in data.draw(st.lists(st.integers(0, len(hostile) - 1), max_size=6)):
        hostile[at] = data.draw(st.integers(0, 255))
    actual = ProduceFrames("me", "id", -1, 1, topic_partitions).parse_appended(memoryview(hostile))
    assert actual is None or len(actual.base_offsets) == len(topic_partitions)


@pytest.mark.parametrize("topic_id", ["", "AAAAAAAAAAAAAAAAAAAAAA"])
def test_topics_are_asked_for_by_name_where_one_has_no_id(topic_id: str) -> None:
    fetch_partition = FetchPartition(A0, -1, 0, 100, topic_id=A_ID)
    assert topic_names([fetch_partition]) == {A_UUID.bytes: "a"}
    assert topic_names([fetch_partition, FetchPartition(B0, -1, 0, 100, topic_id=topic_id)]) is None


def test_a_response_about_a_topic_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(WireError, match="not asked for"):
        parse_fetch_response(memoryview(fetch_response(API_VERSION_BY_ID)), {UUID(int=9).bytes: "b"})


@pytest.mark.parametrize("names", [None, {A_UUID.bytes: "a"}])
def test_a_fetch_response_is_read_without_copying_records(names: TopicNames | None) -> None:
    frame = memoryview(bytearray(fetch_response(API_VERSION_BY_ID if names else API_VERSION)))
    response = parse_fetch_response(frame, names)
    (part,) = response.partitions
    assert (response.correlation_id, response.error_code) == (7, 0)
    assert (part.topic_partition, part.high_watermark, part.last_stable_offset, part.log_start_offset) == (A0, 9, 8, 1)
    assert (part.aborted, part.preferred_replica) == (((4, 2),), NO_REPLICA)
    assert bytes(part.records) == batch(2, 3)
    part.records[0] = 0xEE
    assert 0xEE in frame


def test_a_response_of_the_leader_alone_is_read_without_copying_records() -> None:
    frame = memoryview(bytearray(leader_fetch_response()))
    response = parse_leader_fetch_response(frame)
    (part,) = response.partitions
    assert (response.correlation_id, response.throttle_time_ms, response.error_code) == (7, 3, 0)
    assert (part.topic_partition, part.high_watermark, part.last_stable_offset, part.log_start_offset) == (A0, 9, 8, 1)
    assert (part.aborted, part.diverging, part.preferred_replica) == (((4, 2),), None, NO_REPLICA)
    assert bytes(part.records) == batch(2, 3)
    part.records[0] = 0xEE
    assert 0xEE in frame


def test_every_cut_frame_of_the_leader_alone_is_refused() -> None:
    response = leader_fetch_response()
    for size in range(len(response)):
        with pytest.raises(WireError):
            parse_leader_fetch_response(memoryview(response[:size]))


def test_a_produce_response_is_read_with_its_record_errors() -> None:
    response = parse_produce_response(memoryview(produce_response()))
    (part,) = response.partitions
    assert (part.topic_partition, part.error_code, part.base_offset, part.error_message) == (A1, 87, -1, "bad")
    assert part.record_errors == ((3, "null key"),)
    assert response.throttle_time_ms == 5


@pytest.mark.parametrize("response", [fetch_response(), produce_response()])
def test_every_cut_frame_is_refused(response: bytes) -> None:
    parse = parse_fetch_response if response == fetch_response() else parse_produce_response
    for size in range(len(response)):
        with pytest.raises(WireError):
            parse(memoryview(response[:size]))


@pytest.mark.slow
@given(data=st.data())
def test_a_changed_frame_is_read_or_refused_but_never_crashes(data: st.DataObject) -> None:
    responses: list[tuple[bytes, Callable[[memoryview], object]]] = [
        (fetch_response(), parse_fetch_response),
        (produce_response(), parse_produce_response),
    ]
    response, parse = data.draw(st.sampled_from(responses))
    hostile = bytearray(response)
    for at in data.draw(st.lists(st.integers(0, len(hostile) - 1), max_size=6)):
        hostile[at] = data.draw(st.integers(0, 255))
    try:
        parse(memoryview(hostile))
    except WireError:
        return
