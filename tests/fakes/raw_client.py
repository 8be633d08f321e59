"""A client that sends any request, valid or not, and returns decoded responses: to compare brokers by."""

from __future__ import annotations

import itertools
import socket
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tests.fakes.kafka_codec import request_type, response_type

TIMEOUT_S = 30.0
_PASSING = frozenset({14, 15, 16, 51})
"""Coordinators say these while they load or write; never the last word of a healthy one."""


class RawClient:
    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def send(self, api: str, **fields: Any) -> int:
        request = request_type(api)(**fields)
        correlation_id = next(self._correlation_ids)
        request.with_header(correlation_id, "raw")
        self._socket.sendall(bytes(request.encode(framed=True, header=True)))
        return correlation_id

    def receive(self, api: str, correlation_id: int) -> Any:
        frame = self._exactly(int.from_bytes(self._exactly(4), "big"))
        assert int.from_bytes(frame[:4], "big") == correlation_id
        return response_type(api).decode(frame[4:] if api in ("ApiVersions", "SaslHandshake") else frame[5:])

    def ask(self, api: str, **fields: Any) -> Any:
        return self.receive(api, self.send(api, **fields))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)

    # --- one partition, one code ---

    def settled(self, ask: Any) -> int:
        """Return the code of `ask()` once it is none of those that pass."""
        give_up_at = time.monotonic() + TIMEOUT_S
        while (code := int(ask())) in _PASSING and time.monotonic() < give_up_at:
            time.sleep(0.02)
        return code

    def find(self, key: str, kind: int) -> int:
        return self.settled(lambda: self.ask("FindCoordinator", key=key, key_type=kind).error_code)

    def init(self, transactional_id: str | None, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1) -> Any:
        """One try."""
        return self.ask(
            "InitProducerId",
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    def initialised(self, transactional_id: str) -> tuple[int, int]:
        """Return (producer id, epoch), after whatever there is to wait for."""
        assert self.find(transactional_id, 1) == 0
        assert self.find(transactional_id, 0) == 0
        responses: list[Any] = []

        def init() -> int:
            responses.append(self.init(transactional_id))
            return int(responses[-1].error_code)

        assert self.settled(init) == 0
        return responses[-1].producer_id, responses[-1].producer_epoch

    def produce(
        self,
        topic: str,
        records: bytes | None,
        *,
        txn: str | None = None,
        partition: int = 0,
        acks: int = -1,
        twice: bool = False,
    ) -> Any:
        """Return the partition's response."""
        responses = self.produce_many([(topic, partition, records)] * (2 if twice else 1), txn=txn, acks=acks)
        return responses[topic, partition]

    def produce_many(
        self, members: Sequence[tuple[str, int, bytes | None]], *, txn: str | None = None, acks: int = -1
    ) -> dict[Any, Any]:
        topic = request_type("Produce").TopicProduceData
        by_topic: dict[str, list[Any]] = {}
        for name, partition, records in members:
            by_topic.setdefault(name, []).append(topic.PartitionProduceData(index=partition, records=records))
        response = self.ask(
            "Produce",
            transactional_id=txn,
            acks=acks,
            timeout_ms=10_000,
            topic_data=[topic(name=name, partition_data=parts) for name, parts in by_topic.items()],
        )
        return {(entry.name, part.index): part for entry in response.responses for part in entry.partition_responses}

    def add(self, txn: str, producer_id: int, epoch: int, *topic_partitions: tuple[str, int]) -> list[int]:
        """One try; the codes in the order of `topic_partitions`."""
        topic = request_type("AddPartitionsToTxn").AddPartitionsToTxnTopic
        response = self.ask(
            "AddPartitionsToTxn",
            v3_and_below_transactional_id=txn,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic(name=name, partitions=[partition]) for name, partition in topic_partitions],
        )
        codes = {
            (result.name, part.partition_index): part.partition_error_code
            for result in response.results_by_topic_v3_and_below
            for part in result.results_by_partition
        }
        return [codes[topic_partition] for topic_partition in topic_partitions]

    def added(self, txn: str, producer_id: int, epoch: int, topic: str, partition: int = 0) -> int:
        return self.settled(lambda: self.add(txn, producer_id, epoch, (topic, partition))[0])

    def add_offsets(self, txn: str, producer_id: int, epoch: int) -> int:
        fields = {"transactional_id": txn, "producer_id": producer_id, "producer_epoch": epoch, "group_id": txn}
        return self.settled(lambda: self.ask("AddOffsetsToTxn", **fields).error_code)

    def end_once(self, txn: str, producer_id: int, epoch: int, *, commit: bool) -> int:
        fields = {"transactional_id": txn, "producer_id": producer_id, "producer_epoch": epoch, "committed": commit}
        return int(self.ask("EndTxn", **fields).error_code)

    def end(self, txn: str, producer_id: int, epoch: int, *, commit: bool) -> int:
        return self.settled(lambda: self.end_once(txn, producer_id, epoch, commit=commit))

    def describe_txn(self, txn: str) -> tuple[int, str, int, int]:
        """Return error code, state, producer id and epoch."""
        (state,) = self.ask("DescribeTransactions", transactional_ids=[txn]).transaction_states
        return state.error_code, state.transaction_state, state.producer_id, state.producer_epoch

    def write_marker(self, topic: str, producer_id: int, epoch: int, *, coordinator_epoch: int, partition: int = 0) -> int:
        """One abort marker, to the broker that this client is connected to."""
        kind = request_type("WriteTxnMarkers").WritableTxnMarker
        marker = kind(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            topics=[kind.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=coordinator_epoch,
        )
        response = self.ask("WriteTxnMarkers", markers=[marker])
        return int(response.markers[0].topics[0].partitions[0].error_code)

    def commit_offset(self, txn: str, producer_id: int, epoch: int, topic: str, offset: int, metadata: str = "") -> int:
        kind = request_type("TxnOffsetCommit").TxnOffsetCommitRequestTopic
        part = kind.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
        )

        def once() -> int:
            response = self.ask(
                "TxnOffsetCommit",
                transactional_id=txn,
                group_id=txn,
                producer_id=producer_id,
                producer_epoch=epoch,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[kind(name=topic, partitions=[part])],
            )
            return int(response.topics[0].partitions[0].error_code)

        return self.settled(once)

    def group_offset(self, group: str, topic: str) -> tuple[int, int]:
        """(error code, offset), one try."""
        kind = request_type("OffsetFetch").OffsetFetchRequestTopic
        responses: list[Any] = []

        def once() -> int:
            asked = [kind(name=topic, partition_indexes=[0])]
            responses.append(self.ask("OffsetFetch", group_id=group, topics=asked, require_stable=True))
            return int(responses[-1].error_code)

        assert self.settled(once) == 0
        part = responses[-1].topics[0].partitions[0]
        return part.error_code, part.committed_offset

    def list_offsets(
        self, topic: str, timestamp: int, *, partition: int = 0, isolation: int = 0, epoch: int = -1, times: int = 1
    ) -> Any:
        kind = request_type("ListOffsets").ListOffsetsTopic
        part = kind.ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
        asked = [kind(name=topic, partitions=[part] * times)]
        response = self.ask("ListOffsets", replica_id=-1, isolation_level=isolation, topics=asked)
        return response.topics[0].partitions[0]

    def epoch_end(self, topic: str, leader_epoch: int, *, epoch: int = -1) -> Any:
        kind = request_type("OffsetForLeaderEpoch").OffsetForLeaderTopic
        part = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=leader_epoch)
        response = self.ask("OffsetForLeaderEpoch", replica_id=-1, topics=[kind(topic=topic, partitions=[part])])
        return response.topics[0].partitions[0]

    def producers(self, topic: str) -> list[Any]:
        """Return what the leader of partition 0 remembers of producers."""
        kind = request_type("DescribeProducers").TopicRequest
        response = self.ask("DescribeProducers", topics=[kind(name=topic, partition_indexes=[0])])
        return list(response.topics[0].partitions[0].active_producers)

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        isolation: int = 0,
        epoch: int = -1,
        last_fetched_epoch: int = -1,
        partition_bytes: int = 1 << 20,
        max_bytes: int = 1 << 20,
        partitions: tuple[int, ...] = (0,),
    ) -> Any:
        """Return the partition's response, or a list of them where several are requested. Does not wait for data."""
        kind = request_type("Fetch").FetchTopic
        asked = [
            kind.FetchPartition(
                partition=partition,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_fetched_epoch,
                log_start_offset=-1,
                partition_max_bytes=partition_bytes,
            )
            for partition in partitions
        ]
        response = self.ask(
            "Fetch",
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic=topic, partitions=asked)],
            forgotten_topics_data=[],
            rack_id="",
        )
        assert response.error_code == 0
        answered = response.responses[0].partitions
        return answered[0] if len(partitions) == 1 else answered

    def metadata(self, *names: str) -> Any:
        kind = request_type("Metadata").MetadataRequestTopic
        return self.ask(
            "Metadata",
            topics=[kind(topic_id=uuid.UUID(int=0), name=name) for name in names],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
