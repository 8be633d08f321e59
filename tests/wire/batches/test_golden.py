"""Responses captured from real brokers (tests/golden), held against what a confluent-kafka consumer and kafka-python say.

The frames were stored as they came; `tests/golden/capture.py` makes them anew.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceResponse
from tests.support.golden_files import (
    ANSWER_HEAD_BYTES,
    CORRELATION_ID,
    GOLDEN,
    LENGTH_BYTES,
    VISIBLE,
    Read,
    frame_of,
    names,
    reads,
)

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import CODEC_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, Codec, MarkerType, verify_crc
from shallow_mirror.wire.batches import Verdict, index_batches, restamp
from shallow_mirror.wire.protocol import WireError, parse_fetch_response, parse_produce_response

VERSIONS = ("3.9.2", "4.3.0", "4.4.0")
LOG_APPEND_TIME = 2


def read(scenario: str, version: str, position: int = 0) -> Read:
    return list(reads(f"fetch-{scenario}-{version}"))[position]


def test_every_version_was_captured_in_all_scenarios() -> None:
    for version in VERSIONS:
        assert len(names("fetch-")) == len(VERSIONS) * len([name for name in names("fetch-") if name.endswith(version)])
    assert (len(names("fetch-")), len(names("produce-"))) == (24, 6)
    assert sum(file.stat().st_size for file in GOLDEN.iterdir()) < 300_000


@pytest.mark.parametrize("name", names("fetch-"))
def test_a_fetch_response_is_what_kafka_python_decodes(name: str) -> None:
    frame = frame_of(name)
    decoded = FetchResponse[12].decode(bytes(frame[ANSWER_HEAD_BYTES - LENGTH_BYTES :]))
    response = parse_fetch_response(frame)
    assert (response.throttle_time_ms, response.error_code) == (decoded.throttle_time_ms, decoded.error_code)
    theirs = {
        (topic.topic, partition.partition_index): partition for topic in decoded.responses for partition in topic.partitions
    }
    assert {
        (partition.topic_partition.topic, partition.topic_partition.partition) for partition in response.partitions
    } == theirs.keys()
    for ours in response.partitions:
        other = theirs[ours.topic_partition.topic, ours.topic_partition.partition]
        assert ours.error_code == other.error_code
        assert ours.high_watermark == other.high_watermark
        assert ours.last_stable_offset == other.last_stable_offset
        assert ours.log_start_offset == other.log_start_offset
        assert list(ours.aborted) == [
            (aborted_txn.producer_id, aborted_txn.first_offset) for aborted_txn in other.aborted_transactions or ()
        ]
        assert ours.records == bytes(other.records or b"")
        assert ours.diverging is None


@pytest.mark.parametrize("name", names("fetch-"))
def test_offsets_of_a_response_are_those_that_other_clients_receive(name: str) -> None:
    for captured in reads(name):
        assert captured.fetched.error_code == captured.told["error_code"]
        if captured.fetched.error_code:
            assert len(captured.fetched.records) == 0
            continue
        assert captured.fetched.high_watermark == captured.told["high_watermark"]
        assert captured.fetched.log_start_offset == captured.told["log_start_offset"]
        assert captured.fetched.last_stable_offset == captured.told["last_stable_offset"]


@pytest.mark.parametrize("name", names("fetch-"))
def test_batches_hold_the_records_a_consumer_finds_with_their_codec_and_times(name: str) -> None:
    for captured in reads(name):
        assert captured.index.stop is None
        for i, header in enumerate(captured.index.headers):
            assert verify_crc(captured.bytes_of(i))
            actual = captured.told_of(i)
            if header["attributes"] & CONTROL_BIT:
                assert actual == []
                continue
            assert len(actual) == header["records_count"]
            codec = Codec(int(header["attributes"] & CODEC_MASK))
            if actual:
                assert {told_codec for _, _, told_codec in actual} == {codec.name.lower()}
                assert max(time_ms for _, time_ms, _ in actual) == header["max_timestamp"]
            if header["attributes"] & LOG_APPEND_TIME_BIT:
                assert {time_ms for _, time_ms, _ in actual} == {header["max_timestamp"]}
                assert captured.told["timestamp_types"] == [LOG_APPEND_TIME]


@pytest.mark.parametrize("name", names("fetch-"))
def test_admitted_batches_are_exactly_the_visible_records_up_to_the_next_position(name: str) -> None:
    for captured in reads(name):
        kept = np.flatnonzero(np.isin(captured.admission.verdicts, VISIBLE)).tolist()
        admitted = [offset for i in kept for offset, _, _ in captured.told_of(i)]
        is_committed = not name.startswith("fetch-txns-uncommitted")
        visible = captured.told["committed"] if is_committed else [offset for offset, _, _ in captured.told["records"]]
        first = min([captured.position, *(int(captured.index.headers["base_offset"][i]) for i in kept)])
        assert admitted == [offset for offset in visible if first <= offset < captured.admission.next_position]
        assert not captured.admission.refusals


@pytest.mark.parametrize("version", VERSIONS)
def test_every_codec_was_captured_and_append_times_too(version: str) -> None:
    created, stamped = reads(f"fetch-codecs-{version}")
    for response in (created, stamped):
        assert set((response.index.headers["attributes"] & CODEC_MASK).tolist()) == set(Codec)
    assert created.has(LOG_APPEND_TIME_BIT) == []
    assert len(stamped.has(LOG_APPEND_TIME_BIT)) == len(stamped.index)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_from_inside_a_batch_begins_with_that_batch(version: str) -> None:
    response = read("inside", version)
    base, last = int(response.index.headers["base_offset"][0]), int(response.index.last_offset[0])
    assert base < response.position <= last
    assert response.admission.verdicts[0] == Verdict.REBUILD


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partial_last_batch_is_left_over(version: str) -> None:
    response = read("partial", version)
    assert 0 < response.index.consumed_bytes < len(response.fetched.records)
    assert response.admission.next_position < response.fetched.high_watermark


@pytest.mark.parametrize("version", VERSIONS)
def test_the_end_of_the_log_is_an_empty_response_and_beyond_it_an_error(version: str) -> None:
    empty, beyond = read("empty", version), read("out-of-range", version)
    assert (empty.fetched.error_code, len(empty.fetched.records)) == (0, 0)
    assert beyond.fetched.error_code == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_aborted_transactions_are_dropped_whole_as_their_markers_say(version: str) -> None:
    response = read("txns-committed", version)
    assert len(response.fetched.aborted) == 2
    assert response.fetched.last_stable_offset < response.fetched.high_watermark
    verdicts = [Verdict(verdict) for verdict in response.admission.verdicts.tolist()]
    assert verdicts.count(Verdict.DROP_ABORTED) == 3
    fates = [response.admission.markers[i].type for i in sorted(response.admission.markers)]
    assert fates == [MarkerType.ABORT, MarkerType.COMMIT, MarkerType.COMMIT, MarkerType.ABORT]
    assert response.admission.next_position == response.fetched.last_stable_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_without_isolation_there_is_no_aborted_list_and_open_transactions_are_seen(version: str) -> None:
    response = read("txns-uncommitted", version)
    assert response.fetched.aborted == ()
    assert response.admission.next_position == response.fetched.high_watermark
    assert Verdict.DROP_ABORTED not in response.admission.verdicts


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_cleaner_left_is_reported_by_headers_alone(version: str) -> None:
    response = read("compacted", version)
    headers = response.index.headers
    counts, spans = headers["records_count"], headers["last_offset_delta"] + 1
    holed = np.flatnonzero((counts > 0) & (counts < spans))
    assert len(holed)
    assert all(response.admission.verdicts[i] == Verdict.REBUILD for i in holed)
    emptied = np.flatnonzero((counts == 0) & ((headers["attributes"] & CONTROL_BIT) == 0))
    assert len(emptied)
    assert all(response.admission.verdicts[i] == Verdict.DROP_EMPTY for i in emptied)
    waiting = response.has(DELETE_HORIZON_BIT)
    is_control = (headers["attributes"][waiting] & CONTROL_BIT) != 0
    assert is_control.any()
    assert not is_control.all()
    assert (headers["base_timestamp"][waiting] > headers["max_timestamp"][waiting]).all()


@pytest.mark.parametrize("name", names("fetch-"))
def test_restamped_batches_keep_their_payload_and_a_right_checksum(name: str) -> None:
    for captured in reads(name):
        before = [bytes(captured.bytes_of(i)[61:]) for i in range(len(captured.index))]
        restamp(
            captured.fetched.records,
            captured.index,
            np.arange(len(captured.index)),
            producer_id=9,
            producer_epoch=1,
            first_sequence=(1 << 31) - 3,
        )
        for i, payload in enumerate(before):
            assert verify_crc(captured.bytes_of(i))
            assert captured.bytes_of(i)[61:] == payload


@pytest.mark.parametrize("name", names("produce-"))
def test_a_produce_response_is_what_kafka_python_decodes(name: str) -> None:
    documents = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["partitions"]
    frame = frame_of(name)
    decoded = ProduceResponse[9].decode(bytes(frame[ANSWER_HEAD_BYTES - LENGTH_BYTES :]))
    response = parse_produce_response(frame)
    assert (response.correlation_id, response.throttle_time_ms) == (CORRELATION_ID, decoded.throttle_time_ms)
    theirs = {
        TopicPartition(topic.name, partition_response.index): partition_response
        for topic in decoded.responses
        for partition_response in topic.partition_responses
    }
    assert [partition.topic_partition for partition in response.partitions] == list(theirs)
    assert {str(position) for position in theirs} == documents.keys()
    for ours in response.partitions:
        other = theirs[ours.topic_partition]
        errors = [(record_error.batch_index, record_error.batch_index_error_message) for record_error in other.record_errors]
        assert ours.error_code == other.error_code
        assert ours.base_offset == other.base_offset
        assert ours.log_append_time_ms == other.log_append_time_ms
        assert ours.log_start_offset == other.log_start_offset
        assert ours.error_message == other.error_message
        assert list(ours.record_errors) == errors
        expected = documents[str(ours.topic_partition)]
        assert expected == {
            "error_code": ours.error_code,
            "base_offset": ours.base_offset,
            "record_errors": [index for index, _ in ours.record_errors],
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", names(""))
def test_every_cut_of_a_response_is_refused(name: str) -> None:
    frame = frame_of(name)
    parse = parse_fetch_response if name.startswith("fetch-") else parse_produce_response
    for size in range(len(frame)):
        with pytest.raises(WireError):
            parse(frame[:size])


@pytest.mark.parametrize("name", names("fetch-"))
def test_every_cut_of_the_records_is_the_whole_batches_in_front_of_it(name: str) -> None:
    for fetched in parse_fetch_response(frame_of(name)).partitions:
        whole = index_batches(fetched.records)
        ends = (whole.pos + whole.size_bytes).tolist()
        for size in range(len(fetched.records)):
            index = index_batches(fetched.records[:size])
            assert index.stop is None
            assert index.pos.tolist() == [pos for pos, end in zip(whole.pos.tolist(), ends, strict=True) if end <= size]
