"""Leaders that name another replica to be read (KIP-392): every batch comes once and in order, and only a leader ends a range."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from tests.fakes.changes import AS_IT_SHOULD, Change, after, cut, dropped_after, dropped_before, error, garbage
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.partition_log import Follower
from tests.fakes.strict_broker import StrictCluster
from tests.support.range_readings import A, B, C, Reading, fill, stored, whole, with_id
from tests.support.record_batches import batch, marker

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.clients.batch_consumer import BatchConsumer
from shallow_mirror.errors import RetriableError, TopicRecreatedError
from shallow_mirror.types import IsolationLevel

LEADER, FOLLOWER = 1, 2
BY_LEADER_ONLY = 10


def prefer_follower(fake: StrictCluster, follower: Follower | None = None) -> Follower:
    """Give `t-0` a follower at node 2, which its leader names to whoever asks."""
    log = fake.log("t")
    log.followers[FOLLOWER] = follower or Follower()
    log.select_replica = lambda _rack: FOLLOWER
    return log.followers[FOLLOWER]


def fetches(fake: StrictCluster) -> list[tuple[int, int]]:
    """(node, version) of every Fetch, in order."""
    return [(request.node_id, request.body.version) for request in fake.received if request.api == "Fetch"]


def compact_end(fake: StrictCluster) -> int:
    """Fill `t-0` with five batches of two records, remove the last two by compaction; returns the log's end."""
    end = fill(fake, A, [2] * 5)
    fake.log("t").compact_away(6, 10)
    return end


def test_a_replica_that_the_leader_names_is_read(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [2] * 5, payload_bytes=40)
    assert Reading(client, clock, whole(A, end), fetch_bytes=150).run()[A] == stored(fake, A, 0, end)
    assert fetches(fake)[0][0] == LEADER
    assert {node for node, _ in fetches(fake)[1:]} == {FOLLOWER}


def test_a_later_reader_asks_the_same_replica_until_its_lease_is_over(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [2] * 2)
    for _ in range(2):
        assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert [node for node, _ in fetches(fake)] == [LEADER, FOLLOWER, FOLLOWER]
    clock.now += client.config.metadata_max_age_ms / 1000
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert [node for node, _ in fetches(fake)[3:]] == [LEADER, FOLLOWER]


def test_a_new_leader_is_asked_before_the_replica_that_the_old_one_named(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [2] * 2)
    Reading(client, clock, whole(A, end)).run()
    fake.log("t").followers = {LEADER: Follower()}
    fake.move_leader(("t", 0), FOLLOWER)
    client.forget_metadata()
    del fake.received[:]
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert [node for node, _ in fetches(fake)] == [FOLLOWER]


@pytest.mark.parametrize(("rack", "node_id"), [("near", FOLLOWER), ("", LEADER)])
def test_the_clients_rack_reaches_the_leader(fake: StrictCluster, clock: SleepingClock, rack: str, node_id: int) -> None:
    prefer_follower(fake)
    fake.log("t").select_replica = lambda rack: FOLLOWER if rack == "near" else LEADER
    client = client_of(fake, clock, client_rack=rack)
    end = fill(fake, A, [2] * 2)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert fetches(fake)[-1][0] == node_id
    client.close()


@pytest.mark.parametrize("behind", [Follower(4, 4), Follower(10, 4), Follower(10, 0)])
def test_what_a_replica_lacks_is_read_from_its_leader(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, behind: Follower
) -> None:
    prefer_follower(fake, behind)
    end = fill(fake, A, [2] * 5)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)


def test_a_replica_whose_log_ends_below_the_position_is_no_data_loss(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    follower = prefer_follower(fake)
    end = fill(fake, A, [2] * 5, payload_bytes=40)
    fake.change("Fetch", AS_IT_SHOULD, after(lambda: setattr(follower, "end_offset", 2)), node_id=FOLLOWER)
    assert Reading(client, clock, whole(A, end), fetch_bytes=150).run()[A] == stored(fake, A, 0, end)


@pytest.mark.parametrize("code", [-1, 1, 2, 3, 6, 9, 29, 56, 74, 75, 78, 100, 103])
def test_whatever_a_replica_refuses_its_leader_is_asked_for(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, code: int
) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [2] * 5)
    fake.change("Fetch", error(code, ("t", 0)), node_id=FOLLOWER)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert fetches(fake)[-1] == (LEADER, BY_LEADER_ONLY)


@pytest.mark.parametrize("fault", [dropped_before(), dropped_after(), cut(20), garbage(9), error(70)])
def test_a_replica_that_fails_is_not_asked_again_for_a_lease(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, fault: Change
) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [2] * 5)
    fake.change("Fetch", fault, node_id=FOLLOWER)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert [node for node, _ in fetches(fake)].count(FOLLOWER) == 1


def test_a_replica_that_is_down_is_left_for_the_leader(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [2] * 5)
    nodes_before = dict(fake.nodes)
    fake.stop_node(FOLLOWER)
    fake.nodes.update(nodes_before)  # as long as the controller has not noticed
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert fetches(fake)[-1] == (LEADER, BY_LEADER_ONLY)


def test_bytes_that_only_a_replica_has_damaged_are_read_from_its_leader(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [2] * 5)
    damaged: list[Any] = []

    def damage(response: Any) -> None:
        for part in (part for topic in response.responses for part in topic.partitions):
            if part.records and not damaged:
                damaged.append(part)
                first = int.from_bytes(part.records[8:12], "big") + 12
                part.records = bytes(part.records[: first + 8]) + b"\0\0\0\5" + bytes(part.records[first + 12 :])

    fake.alter_responses("Fetch", damage)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert damaged


def test_a_leader_that_names_itself_is_asked_to_answer(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    end = fill(fake, A, [2] * 5)

    def name_itself(response: Any) -> None:
        for part in (part for topic in response.responses for part in topic.partitions):
            if fetches(fake)[-1][1] != BY_LEADER_ONLY:
                part.records, part.preferred_read_replica = b"", LEADER

    fake.alter_responses("Fetch", name_itself)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)


def test_a_topic_that_was_created_again_is_not_read_from_the_leader_alone_either(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    prefer_follower(fake)
    end = fill(fake, A, [3, 1, 4])
    wanted = with_id(fake, client, clock, A, end)

    def create_again() -> None:
        fake.delete_topic("t")
        fake.create_topic("t", 3)
        fill(fake, A, [3, 1, 4])

    fake.change("Fetch", AS_IT_SHOULD, error(9, ("t", 0)), after(create_again))
    with pytest.raises(TopicRecreatedError):
        Reading(client, clock, wanted).run()


def test_aborted_transactions_are_reported_by_a_replica_as_by_the_leader(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    prefer_follower(fake, Follower(high_watermark=4))
    log = fake.log("t")
    log.seed(batch(0, 2), batch(2, 2, attributes=0x10, producer_id=7, producer_epoch=0, base_sequence=0), marker(4, 0, 7))
    reading = Reading(client, clock, whole(A, 5))
    assert [base for base, _ in reading.run()[A]] == [0, 2, 4]
    assert reading.aborted == {(7, 2)}


# --- what ends a range ---


@pytest.mark.parametrize("end", [10, 8])
def test_a_hole_is_believed_of_the_leader_only(fake: StrictCluster, client: Cluster, clock: SleepingClock, end: int) -> None:
    prefer_follower(fake)
    compact_end(fake)
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)
    assert fetches(fake)[-2:] == [(LEADER, BY_LEADER_ONLY)] * 2


def test_a_leader_that_only_names_replicas_never_ends_a_range(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    """Its answers hold no batch and no error, and its log reaches beyond the range."""
    end = fill(fake, A, [2] * 5)
    fake.log("t").configs["cleanup.policy"] = "compact"
    prefer_follower(fake, Follower(10, 0))
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)


def empty_responses(fake: StrictCluster) -> None:
    """Let every Fetch be answered without batches and without an error, as while a broker waits for its remote storage."""

    def empty(response: Any) -> None:
        for topic in response.responses:
            for part in topic.partitions:
                part.records = b""

    fake.alter_responses("Fetch", empty)


@pytest.mark.parametrize(
    ("configs", "is_newest", "message"),
    [
        ({}, True, "cleanup.policy of the topic does not contain compact"),
        ({}, False, "cleanup.policy of the topic does not contain compact"),
        ({"cleanup.policy": "compact", "remote.storage.enable": "true"}, False, "they may be in remote storage"),
        ({"cleanup.policy": "compact,delete", "confluent.tier.enable": "true"}, False, "they may be in remote storage"),
        ({"cleanup.policy": "compact", "redpanda.remote.read": "true"}, False, "they may be in remote storage"),
    ],
)
def test_a_range_that_compaction_cannot_have_emptied_is_no_hole(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, configs: dict[str, str], is_newest: bool, message: str
) -> None:
    fake.is_newest = is_newest
    fake.log("t").configs.update(configs)
    end = fill(fake, A, [2] * 5)
    empty_responses(fake)
    with pytest.raises(
        RetriableError, match=f"EMPTY_FETCH: the leader of t-0 answers Fetch at offset 0 without .* 10 .*: .*{message}"
    ):
        Reading(client, clock, whole(A, end), ms=2_000).run()


def test_a_range_whose_topic_may_not_be_described_is_no_hole(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    end = compact_end(fake)
    fake.change_always("DescribeConfigs", error(29))
    with pytest.raises(RetriableError, match=r"EMPTY_FETCH: .* is not known: .*grant DescribeConfigs on topic t"):
        Reading(client, clock, whole(A, end), ms=2_000).run()


@pytest.mark.parametrize("is_newest", [True, False])
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_a_range_that_compaction_emptied_is_a_hole(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, policy: str, is_newest: bool
) -> None:
    fake.is_newest = is_newest
    end = compact_end(fake)
    fake.log("t").configs["cleanup.policy"] = policy
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)


def test_a_failure_at_remote_storage_is_no_damage_where_the_broker_cannot_be_asked(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.is_newest = False
    fake.log("t").configs["redpanda.remote.read"] = "true"
    end = fill(fake, A, [2] * 5)
    fake.change("Fetch", error(-1, ("t", 0)))
    assert Reading(client, clock, whole(A, end)).run()[A] == stored(fake, A, 0, end)


# --- everything at once ---


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_whatever_replicas_do_every_batch_comes_once_and_in_order(fake: StrictCluster, clock: SleepingClock, seed: int) -> None:
    dice = random.Random(seed)
    client = client_of(fake, clock, client_rack=dice.choice(["", "near"]))
    ends = {
        topic_partition: fill(fake, topic_partition, [dice.randint(1, 9) for _ in range(dice.randint(1, 12))], 60)
        for topic_partition in (A, B, C)
    }
    for topic_partition, end in ends.items():
        log = fake.log(topic_partition.topic, topic_partition.partition)
        other = 3 - log.leader
        log.followers[other] = Follower(dice.choice([None, dice.randint(0, end)]), dice.choice([None, dice.randint(0, end)]))
        log.select_replica = dice.choice([None, lambda _rack, other=other: other, lambda rack, other=other: other if rack else 0])
        if dice.random() < 0.4:
            log.compact_away(dice.randrange(end), end)

    def swap(partition: int) -> None:
        log = fake.log("t", partition)
        log.followers = {log.leader: Follower()}
        log.move(3 - log.leader)

    faults: Sequence[Change] = [
        AS_IT_SHOULD,
        dropped_before(),
        dropped_after(),
        cut(30),
        *(after(partial(swap, partition)) for partition in range(3)),
    ]
    fake.change("Fetch", *[dice.choice(faults) for _ in range(20)])
    ranges = [whole(topic_partition, end) for topic_partition, end in ends.items()]
    read = Reading(client, clock, *ranges, ms=600_000, fetch_bytes=dice.choice([64, 500, 4_000])).run()
    assert read == {topic_partition: stored(fake, topic_partition, 0, end) for topic_partition, end in ends.items()}
    client.close()


# --- the small client ---


@pytest.mark.slow
def test_a_batch_consumer_follows_to_the_replica_and_back(fake: StrictCluster) -> None:
    follower = prefer_follower(fake)
    fill(fake, A, [2] * 3)
    with BatchConsumer(ClientConfig.from_properties({"bootstrap.servers": fake.bootstrap})) as consumer:
        consumer.assign({A: 0})
        polled = [batch.base_offset for batch in consumer.poll_batches(1 << 20, 5_000)]
        assert fetches(fake)[1][0] == FOLLOWER
        follower.end_offset = 2  # and the position is 6
        fill(fake, A, [2])
        while len(polled) < 4:
            polled += [batch.base_offset for batch in consumer.poll_batches(1 << 20, 5_000)]
    assert polled == [0, 2, 4, 6]
    assert fetches(fake)[-1] == (LEADER, BY_LEADER_ONLY)


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_a_batch_consumer_at_a_replica_that_is_down_reads_from_the_leader(fake: StrictCluster, isolation: IsolationLevel) -> None:
    prefer_follower(fake)
    fill(fake, A, [2] * 3)
    nodes_before = dict(fake.nodes)
    fake.stop_node(FOLLOWER)
    fake.nodes.update(nodes_before)
    with BatchConsumer({"bootstrap.servers": fake.bootstrap}, isolation=isolation) as consumer:
        consumer.assign({A: 0})
        assert [batch.base_offset for batch in consumer.poll_batches(1 << 20, 10_000)] == [0, 2, 4]
