"""Transactions that are open in a log and over for their coordinator: ended where they are ours, named where that is refused."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from tests.fakes.changes import AS_IT_SHOULD, error
from tests.fakes.clients import SleepingClock
from tests.fakes.peers import NOW_MS, transactional
from tests.fakes.raw_client import RawClient
from tests.fakes.strict_broker import StrictCluster
from tests.support.mirror_runs import create_topic, last_stable_offset

from shallow_mirror.broker import Cluster, ProducerState
from shallow_mirror.broker.admin.hanging_transactions import OpenTxn, ProducersOfMap, abort_hanging
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce.txn import add_partitions, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import SlotTxn, TopicPartition

OURS, OTHERS = "mirror-0", "another-application"
PARTITIONS = A, B, _ = [TopicPartition("t", partition) for partition in range(3)]


class Hanging:
    """Batches of transactions whose ids the coordinator has forgotten before it wrote a marker."""

    def __init__(self, fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
        self.fake, self.client, self.clock = fake, client, clock

    def open(self, name: str, *topic_partitions: TopicPartition) -> SlotTxn:
        txn = init_producer_id(self.client, name, 60_000, self.clock.deadline())
        add_partitions(self.client, txn, topic_partitions, self.clock.deadline())
        for topic_partition in topic_partitions:
            self.fake.log(topic_partition.topic, topic_partition.partition).append(
                transactional(0, (txn.producer_id, txn.producer_epoch)), NOW_MS
            )
        return txn

    def forget(self, name: str) -> None:
        self.fake.forget_txn(name)

    def clean(self, *fenced: str, named: ProducersOfMap | None) -> None:
        txns = [init_producer_id(self.client, name, 60_000, self.clock.deadline()) for name in fenced]
        abort_hanging(self.client, txns, PARTITIONS, 60_000, self.clock.deadline(), named=named)

    def is_open(self, topic_partition: TopicPartition) -> bool:
        log = self.fake.log(topic_partition.topic, topic_partition.partition)
        return log.last_stable_offset < log.end_offset


@pytest.fixture
def hanging(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> Hanging:
    return Hanging(fake, client, clock)


def of_map(*txns: SlotTxn) -> ProducersOfMap:
    return lambda: {txn.producer_id: txn.transactional_id for txn in txns}


def test_what_an_expired_id_left_open_is_aborted_at_each_leader(fake: StrictCluster, hanging: Hanging) -> None:
    old = hanging.open(OURS, A, B)
    hanging.forget(OURS)
    hanging.clean(OURS, named=of_map(old))
    assert not hanging.is_open(A)
    assert not hanging.is_open(B)
    for topic_partition in (A, B):
        log = fake.log(topic_partition.topic, topic_partition.partition)
        assert [(aborted_txn.producer_id, aborted_txn.first_offset) for aborted_txn in log.aborted] == [(old.producer_id, 0)]
        assert log.producers[old.producer_id].epoch == old.producer_epoch + 1, "a zombie's batches are refused from now on"


@pytest.mark.parametrize(
    ("fenced", "named"),
    [([OURS], None), ([OURS], OTHERS), (["mirror-1"], OURS)],
    ids=["the map does not name it", "the map names it of another id", "its id was not fenced"],
)
def test_nothing_is_aborted_that_is_not_surely_ours_and_over(
    fake: StrictCluster, hanging: Hanging, fenced: list[str], named: str | None
) -> None:
    old = hanging.open(OURS, A)
    hanging.forget(OURS)
    hanging.clean(*fenced, named=lambda: {} if named is None else {old.producer_id: named})
    assert hanging.is_open(A)
    assert fake.asked("WriteTxnMarkers") == 0


def test_the_map_is_read_for_it_only_where_a_producer_of_before_has_something_open(hanging: Hanging) -> None:
    def refuse() -> Mapping[int, str]:
        raise AssertionError("the map was read")

    hanging.clean(OURS, named=refuse)
    hanging.open(OURS, A)
    hanging.clean(OURS, named=refuse)
    assert not hanging.is_open(A)
    hanging.open(OTHERS, B)
    hanging.clean(OURS, named=None)
    with pytest.raises(AssertionError, match="was read"):
        hanging.clean(OURS, named=refuse)


@pytest.mark.parametrize("code", [47, 90], ids=["it timed out", "another producer has its id"])
def test_an_abort_that_is_over_before_its_end_is_asked_for_is_not_taken_for_done(
    fake: StrictCluster, hanging: Hanging, code: int
) -> None:
    txn = init_producer_id(hanging.client, OURS, 60_000, hanging.clock.deadline())
    fake.log(A.topic, A.partition).append(
        transactional(0, (txn.producer_id, txn.producer_epoch)), NOW_MS
    )  # no transaction knows it
    fake.change("EndTxn", error(code), AS_IT_SHOULD)
    with pytest.raises(RetriableError, match="INVALID_PRODUCER_EPOCH: mirror-0: the transaction that aborts again timed out"):
        hanging.clean(OURS, named=None)
    assert hanging.is_open(A)
    hanging.clean(OURS, named=None)
    assert not hanging.is_open(A)


@pytest.mark.parametrize("code", [6, 47, 52], ids=["leader moved", "newer producer epoch", "newer coordinator epoch"])
def test_a_leader_or_an_epoch_that_moved_on_is_looked_at_again(fake: StrictCluster, hanging: Hanging, code: int) -> None:
    old = hanging.open(OURS, A)
    hanging.forget(OURS)
    fake.change("WriteTxnMarkers", error(code), AS_IT_SHOULD)
    before = fake.asked("DescribeProducers")
    hanging.clean(OURS, named=of_map(old))
    assert not hanging.is_open(A)
    assert fake.asked("DescribeProducers") == before + 3


def test_without_the_right_every_partition_is_named_with_what_ends_it(fake: StrictCluster, hanging: Hanging) -> None:
    old = hanging.open(OURS, A, B)
    hanging.forget(OURS)
    fake.change_always("WriteTxnMarkers", error(31))
    with pytest.raises(RetriableError) as raised:
        hanging.clean(OURS, named=of_map(old))
    assert raised.value.error_name == "HANGING_TRANSACTION"
    host, port = hanging.client.config.bootstrap[0]
    for topic_partition in (A, B):
        assert (
            f"target {topic_partition}: the transaction of producer id {old.producer_id} (epoch 0) is open from offset 0"
            in str(raised.value)
        )
        command = f"--bootstrap-server {host}:{port} abort --topic t --partition {topic_partition.partition} --start-offset 0"
        assert f"kafka-transactions.sh {command}" in str(raised.value)
    assert "CLUSTER_AUTHORIZATION_FAILED: grant ClusterAction on the cluster" in str(raised.value)
    fake.change_always("WriteTxnMarkers", None)
    hanging.clean(OURS, named=of_map(old))
    assert not hanging.is_open(B)


def test_a_broker_without_the_request_is_named_as_well(fake: StrictCluster, hanging: Hanging) -> None:
    fake.not_offered = frozenset({"WriteTxnMarkers"})
    old = hanging.open(OURS, A)
    hanging.forget(OURS)
    with pytest.raises(RetriableError, match=r"offers no WriteTxnMarkers: .*kafka-transactions\.sh"):
        hanging.clean(OURS, named=of_map(old))


@pytest.mark.brokers
def test_a_real_broker_ends_it_and_takes_nothing_of_it_any_more(target_cluster: Any, topic_name: str) -> None:
    bootstrap, topic_partition = target_cluster.bootstrap, TopicPartition(topic_name, 0)
    create_topic(bootstrap, topic_name)
    cluster, deadline = (
        Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap})),
        Deadline.after_ms(60_000, time.monotonic),
    )
    with RawClient(bootstrap) as raw:
        old = init_producer_id(cluster, topic_name, 900_000, deadline)
        add_partitions(cluster, old, [topic_partition], deadline)
        made = transactional(0, (old.producer_id, old.producer_epoch))
        assert raw.produce(topic_name, made, txn=topic_name).error_code == 0
        assert last_stable_offset(bootstrap, topic_name) == 0
        new = SlotTxn(topic_name, old.producer_id + 1_000_000, 0)  # what the coordinator answers once it has forgotten the id
        abort_hanging(cluster, [new], [topic_partition], 60_000, deadline, named=of_map(old))
        assert last_stable_offset(bootstrap, topic_name) == 2
        second = transactional(1, (old.producer_id, old.producer_epoch))
        assert raw.produce(topic_name, second, txn=topic_name).error_code == 47
    cluster.close()


@pytest.mark.parametrize(
    ("at_ms", "end"),
    [
        (-1, ""),
        (0, "; its last record there was written at 1970-01-01T00:00:00+00:00"),
        (2**63 - 1, "; its last record there was written at timestamp 9223372036854775807"),
    ],
)
def test_an_open_transaction_is_named_whatever_timestamp_its_producer_has_sent(at_ms: int, end: str) -> None:
    open_txn = OpenTxn(A, ProducerState(7, 1, 5, at_ms))
    assert str(open_txn) == f"target t-0: the transaction of producer id 7 (epoch 1) is open from offset 5 on{end}"
