"""Test support: Fetch and Produce responses as bytes."""

from __future__ import annotations

from uuid import UUID

from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceResponse
from tests.support.record_batches import batch

from shallow_mirror.wire.protocol.fetch import (
    API_VERSION,
    API_VERSION_OF_LEADER,
)

A_UUID = UUID(bytes=b"topic of a test!")


def fetch_response(version: int = API_VERSION) -> bytes:
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData
    response = FetchResponse[version](
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[
            topic(
                topic="a",
                topic_id=A_UUID,
                partitions=[
                    partition(
                        partition_index=0,
                        error_code=0,
                        high_watermark=9,
                        last_stable_offset=8,
                        log_start_offset=1,
                        aborted_transactions=[partition.AbortedTransaction(producer_id=4, first_offset=2)],
                        preferred_read_replica=-1,
                        records=batch(2, 3),
                    )
                ],
            )
        ],
    )
    return (7).to_bytes(4, "big") + b"\x00" + bytes(response.encode())


def leader_fetch_response() -> bytes:
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData
    response = FetchResponse[API_VERSION_OF_LEADER](
        throttle_time_ms=3,
        error_code=0,
        session_id=0,
        responses=[
            topic(
                topic="a",
                partitions=[
                    partition(
                        partition_index=0,
                        error_code=0,
                        high_watermark=9,
                        last_stable_offset=8,
                        log_start_offset=1,
                        aborted_transactions=[partition.AbortedTransaction(producer_id=4, first_offset=2)],
                        records=batch(2, 3),
                    )
                ],
            )
        ],
    )
    return (7).to_bytes(4, "big") + bytes(response.encode())


def produce_response() -> bytes:
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse
    response = ProduceResponse[9](
        responses=[
            topic(
                name="a",
                partition_responses=[
                    partition(
                        index=1,
                        error_code=87,
                        base_offset=-1,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                        record_errors=[partition.BatchIndexAndErrorMessage(batch_index=3, batch_index_error_message="null key")],
                        error_message="bad",
                    )
                ],
            )
        ],
        throttle_time_ms=5,
    )
    return (7).to_bytes(4, "big") + b"\x00" + bytes(response.encode())
