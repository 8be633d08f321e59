"""The product's cluster client over a port: the requests of `broker/produce/txn/transactions.py` and `sinks/kafka/protocol/txn_performer.py`, answered as values.

`Cluster` is replaced whole, and below `txn` the one function that turns a request into bytes and back.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.model import effects
from tests.model.effects import NO_RESPONSE, RECEIPTS
from tests.model.programs import Port
from tests.model.source import TOPIC, target_partition

from shallow_mirror.broker import ClusterMetadata, KnownCluster, ListedOffset, PathSpeeds, ProducerState, TopicMetadata
from shallow_mirror.broker.cluster import CONTROL
from shallow_mirror.broker.cluster.cluster_metadata import PartitionMetadata
from shallow_mirror.broker.fetch import ReadRange
from shallow_mirror.broker.net import begun_call
from shallow_mirror.broker.produce.txn import coordinator_requests, transactions
from shallow_mirror.checkpoints.ledger import commits
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP, rows_to_arrow
from shallow_mirror.checkpoints.tables import OFFSET_MAP_LAYOUT
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError, MirrorError, RetriableError
from shallow_mirror.sinks import RoutedTopic
from shallow_mirror.sinks.kafka import kafka_sink
from shallow_mirror.sinks.kafka.protocol import txn_inspection, txn_performer
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, SlotTxn, TopicPartition

PAUSE_S = 1.6
"""Every pause takes this long: longer than the product's patience with markers, a part of that with receipts."""

_PARTITIONS = {partition: PartitionMetadata(partition, 0, 0, 1) for partition in range(4)}
_METADATA = ClusterMetadata("T", {}, {TOPIC: TopicMetadata(TOPIC, target_partition(0).topic_id, False, 0, _PARTITIONS)})


class ModelConnection:
    """A connection to the coordinator. `responses`: to requests that were sent, or their errors, not received yet."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.begun: deque[Any] = deque()
        self.responses: deque[Any] = deque()

    def wait_readable(self, _ms: float) -> bool:
        """Say that nothing has come yet: what may be asked for meanwhile is asked for."""
        return False


class ModelCluster:
    """What `TxnPerformer`, `evidence`, `txn` and `forgotten_markers` use of a `Cluster`: nothing is ever unreachable."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self._control = ModelConnection(port)
        self.config = SimpleNamespace(request_timeout_ms=60_000, bootstrap=[("target", 9092)])

    def coordinator(self, _kind: object, _key: str, _deadline: Deadline, purpose: str = CONTROL) -> ModelConnection:
        return self._control if purpose == CONTROL else ModelConnection(self.port)

    def find_coordinators(self, _kind: object, _keys: Sequence[str], _deadline: Deadline) -> None:
        """There is one coordinator."""

    def forget_coordinator(self, _kind: object, _key: str) -> None:
        """There is one coordinator, and it is found at once."""

    def pause(self, _tries: int, _deadline: Deadline) -> None:
        self.sleep(PAUSE_S)

    def sleep(self, _seconds: float) -> None:
        self.port.ask(effects.Wait())
        self.port.now_s += PAUSE_S

    def clock(self) -> float:
        return self.port.now_s

    def metadata(self, _topics: Sequence[str], _deadline: Deadline) -> ClusterMetadata:
        return _METADATA

    def leaders(self, topic_partitions: Sequence[TopicPartition], _deadline: Deadline) -> dict[TopicPartition, PartitionMetadata]:
        return {
            topic_partition: _METADATA.topics[topic_partition.topic].partitions[topic_partition.partition]
            for topic_partition in topic_partitions
        }

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel, _deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        while True:
            offsets, leaderless = self.latest_offsets(list(timestamps), isolation, _deadline)
            if not leaderless:
                return {topic_partition: ListedOffset(offset, -1, 0) for topic_partition, offset in offsets.items()}
            if _deadline.is_over():
                raise next(iter(leaderless.values()))
            self.sleep(PAUSE_S)

    def latest_offsets(
        self,
        topic_partitions: Sequence[TopicPartition],
        isolation: IsolationLevel,
        _deadline: Deadline,
        *,
        is_patient: bool = True,
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MirrorError]]:
        asked = tuple(sorted(set(topic_partitions)))
        offsets = self.port.ask(effects.ListOffsets(asked, isolation is IsolationLevel.READ_COMMITTED))
        responses = dict(zip(asked, offsets, strict=True))
        leaderless: dict[TopicPartition, MirrorError] = {
            topic_partition: RetriableError("LEADER_NOT_AVAILABLE", f"{topic_partition} has no leader")
            for topic_partition in asked
            if responses[topic_partition] is None
        }
        return {topic_partition: offset for topic_partition, offset in responses.items() if offset is not None}, leaderless

    def begin_latest_offsets(
        self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> list[SimpleNamespace]:
        """Ask now: the response is the state of this moment, whenever it is received."""
        offsets, _ = self.latest_offsets(topic_partitions, isolation, deadline)
        return [SimpleNamespace(receive=lambda _deadline: offsets)]

    def begin_metadata(self, _topics: Sequence[str], _deadline: Deadline) -> SimpleNamespace:
        return SimpleNamespace(receive=lambda _deadline: _METADATA)

    def known(self, metadata: ClusterMetadata, _names: Sequence[str], speeds: PathSpeeds, *, is_new: bool) -> KnownCluster:
        return KnownCluster(metadata, {}, speeds, is_new)

    def describe_producers(
        self, topic_partitions: Collection[TopicPartition], _deadline: Deadline
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        topic_partitions = tuple(sorted(topic_partitions))
        producers = self.port.ask(effects.DescribeProducers(topic_partitions))
        if None in producers:
            raise RetriableError("LEADER_NOT_AVAILABLE", f"one of {topic_partitions} has no leader")
        return {
            topic_partition: tuple(ProducerState(producer_id, 0, start, -1) for producer_id, start in states)
            for topic_partition, states in zip(topic_partitions, producers, strict=True)
        }


class ModelReader:
    """`RangeReader` for the first batch of each range, where evidence is looked for."""

    def __init__(self, cluster: ModelCluster, ranges: Sequence[ReadRange], **_settings: object) -> None:
        self._port, self._ranges = cluster.port, ranges

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for wanted in self._ranges:
            partition, offset = wanted.topic_partition, wanted.position
            response = self._port.ask(effects.Fetch(partition, offset))
            if response is NO_RESPONSE:
                raise RetriableError("LEADER_NOT_AVAILABLE", f"{partition} has no leader")
            if response is None:
                raise DataLossError(partition, offset, None, "retention has deleted it")
            producer_id, producer_epoch, is_aborted = response
            dtype = [("base_offset", "i8"), ("producer_id", "i8"), ("producer_epoch", "i2")]
            headers = np.array([(offset, producer_id, producer_epoch)], dtype=dtype)
            aborted = ((producer_id, offset),) if is_aborted else ()
            index = SimpleNamespace(headers=headers, last_offset=np.array([offset]))
            yield (SimpleNamespace(topic_partition=partition, index=index, aborted=aborted),)


def _call(connection: ModelConnection, api: str, _deadline: Deadline, **fields: Any) -> Any:
    """Instead of `messages.call`: one request, one response in the shape of kafka-python's."""
    if api == "OffsetFetch" and fields["topics"] is None:
        return SimpleNamespace(error_code=0, topics=[])  # asks whose receipts there are: there is one map here
    response = connection.port.ask(_request(api, fields))
    if response is NO_RESPONSE:
        raise RetriableError("NETWORK_EXCEPTION", f"no answer to {api}")
    match api:
        case "DescribeTransactions":
            state = SimpleNamespace(error_code=105 if response is None else 0)
            if response is not None:
                state = SimpleNamespace(
                    error_code=0, transaction_state=response[0], producer_id=response[1], producer_epoch=response[2]
                )
            return SimpleNamespace(transaction_states=[state])
        case "InitProducerId":
            return SimpleNamespace(error_code=response[0], producer_id=response[1], producer_epoch=response[2])
        case "AddPartitionsToTxn":
            partitions = [SimpleNamespace(partition_error_code=response)]
            topics = [
                SimpleNamespace(name=field.name, results_by_partition=partitions) for field in fields["v3_and_below_topics"]
            ]
            return SimpleNamespace(results_by_topic_v3_and_below=topics)
        case "TxnOffsetCommit":
            return SimpleNamespace(topics=[SimpleNamespace(partitions=[SimpleNamespace(error_code=response)])])
        case "OffsetFetch":
            committed = -1 if response[1] is None else 0
            partition = SimpleNamespace(error_code=response[0], committed_offset=committed, metadata=response[1])
            return SimpleNamespace(error_code=0, topics=[SimpleNamespace(partitions=[partition])])
        case _:
            return SimpleNamespace(error_code=response)


def _send(connection: ModelConnection, api: str, deadline: Deadline, **fields: Any) -> None:
    """Instead of `requests.send`: what was sent may have its effect before anything else that the sender does."""
    try:
        connection.responses.append(_call(connection, api, deadline, **fields))
    except RetriableError as error:
        connection.responses.append(error)


def _receive(connection: ModelConnection, _api: str, _deadline: Deadline) -> Any:
    response = connection.responses.popleft()
    if isinstance(response, RetriableError):
        connection.responses.clear()  # as a connection that is closed
        raise response
    return response


def _request(api: str, fields: Mapping[str, Any]) -> effects.Effect:
    match api:
        case "DescribeTransactions":
            return effects.DescribeTxn(fields["transactional_ids"][0])
        case "InitProducerId":
            return effects.InitProducerId(fields["transactional_id"])
        case "AddPartitionsToTxn":
            prefix, topics = "v3_and_below_", fields["v3_and_below_topics"]
            topic_partitions = tuple(TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions)
            return effects.AddToTxn(_txn_of(fields, prefix), topic_partitions)
        case "AddOffsetsToTxn":
            return effects.AddToTxn(_txn_of(fields), (RECEIPTS,))
        case "TxnOffsetCommit":
            topic = fields["topics"][0]
            [partition] = topic.partitions
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            return effects.WriteReceipt(_txn_of(fields), topic_partition, partition.committed_metadata)
        case "EndTxn":
            return effects.EndTxn(_txn_of(fields), fields["committed"])
        case "OffsetFetch":
            topic = fields["topics"][0]
            assert fields["require_stable"], "a receipt is read before it is stable"
            return effects.ReadReceipt(fields["group_id"], TopicPartition(topic.name, topic.partition_indexes[0]))
    raise AssertionError(f"the model has no answer to {api}")


def _txn_of(fields: Mapping[str, Any], prefix: str = "") -> SlotTxn:
    return SlotTxn(fields[f"{prefix}transactional_id"], fields[f"{prefix}producer_id"], fields[f"{prefix}producer_epoch"])


class ModelTopics:
    """`TargetTopics`: every topic is there and is routed to itself."""

    routes: Mapping[str, RoutedTopic] = {
        TOPIC: RoutedTopic(
            target_topic=TOPIC,
            target_topic_id=target_partition(0).topic_id,
            limits=BatchLimits(
                max_message_bytes=1, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.KEEP
            ),
        )
    }

    def prepare(self, topics: Mapping[str, int], deadline: Deadline) -> None:
        """Nothing is missing."""


class _OneEmptyTable:
    """The columns of the offset map; every empty table is the same one."""

    _empty = OFFSET_MAP.empty_table()

    def __iter__(self) -> Iterator[pa.Field]:
        return iter(OFFSET_MAP)

    def empty_table(self) -> pa.Table:
        return self._empty


MODEL_LAYOUT = replace(OFFSET_MAP_LAYOUT, schema=_OneEmptyTable(), rows_to_arrow=functools.cache(rows_to_arrow))
"""Arrow tables of equal rows are made once: nothing else costs as much."""


@contextlib.contextmanager
def product_over_ports() -> Iterator[None]:
    """While it lasts, the product's requests go to the port of the cluster they are made to.

    Compaction is due after every decision, for those who ask whether it is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator_requests, "call", _call)
        patch.setattr(transactions, "call", _call)
        patch.setattr(begun_call, "send", _send)
        patch.setattr(begun_call, "receive", _receive)
        # Instead of copying, the task hands its job over: the tasks of the model run elsewhere.
        patch.setattr(kafka_sink, "SlotTask", lambda job, _target, _input: lambda _rows: iter([job]))
        patch.setattr(txn_performer, "POLLS_AHEAD_MS", txn_performer.POLLS_AHEAD_MS[:1])
        patch.setattr(txn_inspection, "RangeReader", ModelReader)
        patch.setattr(commits, "COMPACT_EVERY_DECISIONS", 1)
        yield


def one_column(values: Sequence[bytes]) -> pa.Table:
    return pa.table({"body": pa.array(list(values), pa.binary())})
