"""What the client knows of a cluster whose leaders move, whose brokers go and come, and whose responses cannot be trusted."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.fakes.changes import AS_IT_SHOULD, Change, after, error, held, hostile
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.kafka_codec import API_KEYS
from tests.fakes.record_rules import header_of
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch

from shallow_mirror.broker import CoordinatorKind, ListedOffset, PathSpeeds, ProducerState
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import gone_topics
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.produce.txn import begin_describe_txn, describe_txn, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, OutcomeUnknownError, RetriableError, TopicAccessError
from shallow_mirror.types import IsolationLevel, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
UNCOMMITTED, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED


@pytest.fixture
def fake() -> Iterator[StrictCluster]:
    """Partition 0 is led by node 1, partition 1 by node 2."""
    with StrictCluster(nodes=2) as cluster:
        cluster.create_topic("t", 2)
        yield cluster


def leaders(client: Cluster, clock: SleepingClock) -> dict[TopicPartition, int]:
    return {topic_partition: leader.leader for topic_partition, leader in client.leaders([A, B], clock.deadline()).items()}


def offsets(client: Cluster, clock: SleepingClock, ms: float = 20_000) -> list[int]:
    listed = client.list_offsets({A: -1, B: -1}, UNCOMMITTED, clock.deadline(ms))
    return [listed[topic_partition].offset for topic_partition in (A, B)]


# --- metadata and leaders ---


def test_metadata_names_cluster_brokers_topics_and_leaders(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    metadata = client.metadata(["t"], clock.deadline())
    assert metadata.cluster_id == client.cluster_id(clock.deadline()) == "fake-cluster"
    assert metadata.brokers == fake.nodes
    topic = metadata.topics["t"]
    assert uuid.UUID(bytes=base64.urlsafe_b64decode(topic.topic_id + "==")) == fake.topic_ids["t"]
    assert [(partition.leader, partition.leader_epoch) for partition in topic.partitions.values()] == [(1, 0), (2, 0)]


def test_none_asks_for_all_topics_and_an_empty_list_for_none(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.create_topic("other")
    assert client.metadata(None, clock.deadline()).topics.keys() == {"t", "other"}
    assert not client.metadata([], clock.deadline()).topics


def test_a_topic_that_does_not_exist_is_reported_and_never_created(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    missing = client.metadata(["missing"], clock.deadline()).topics["missing"]
    assert (missing.error_code, dict(missing.partitions)) == (3, {})
    with pytest.raises(RetriableError, match="missing-0 has no leader"):
        client.leaders([TopicPartition("missing", 0)], clock.deadline())
    with pytest.raises(RetriableError, match="gave up listing offsets"):
        client.list_offsets({TopicPartition("missing", 0): -1}, UNCOMMITTED, clock.deadline(500))
    assert not fake.auto_created


def test_a_topic_that_may_not_be_described_is_for_the_operator(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.change_always("Metadata", error(29, ("t", -1)))
    for ask in (leaders, offsets):
        with pytest.raises(ConfigError, match=r"topic t.*TOPIC_AUTHORIZATION_FAILED"):
            ask(client, clock)


def test_leaders_are_asked_for_once_and_again_when_they_are_too_old(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    assert leaders(client, clock) == {A: 1, B: 2}
    fake.move_leader(("t", 0), 2)
    assert leaders(client, clock) == {A: 1, B: 2}
    assert fake.asked("Metadata") == 1
    clock.sleep(301)
    assert leaders(client, clock) == {A: 2, B: 2}
    assert client.leaders([A], clock.deadline())[A].leader_epoch == 1


def test_a_leader_that_moved_is_found_by_the_request_that_missed_it(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.seed(("t", 0), batch(0, 5))
    assert offsets(client, clock) == [5, 0]
    fake.move_leader(("t", 0), 2)
    assert offsets(client, clock) == [5, 0]


def test_a_partition_without_a_leader_is_waited_for(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.stop_node(2)
    with pytest.raises(RetriableError, match="t-1 has no leader"):
        leaders(client, clock)
    asked = fake.asked("Metadata")
    fake.change("Metadata", AS_IT_SHOULD, after(lambda: fake.start_node(2)))
    assert offsets(client, clock) == [0, 0]
    assert fake.asked("Metadata") > asked + 1


def test_a_leader_that_no_broker_listing_names_is_retriable(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    def forget_node_2(response: Any) -> None:
        response.brokers = [broker for broker in response.brokers if broker.node_id == 1]

    fake.alter_responses("Metadata", forget_node_2)
    with pytest.raises(RetriableError, match="the cluster lists no broker 2"):
        offsets(client, clock, ms=500)


# --- brokers that go and come ---


class Comeback(SleepingClock):
    """Something happens when the client has slept a few times."""

    def __init__(self, after_sleeps: int, action: Callable[[], object]) -> None:
        super().__init__()
        self._after_sleeps, self._action = after_sleeps, action

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if len(self.sleeps) == self._after_sleeps:
            self._action()


def test_a_broker_that_is_unreachable_is_asked_again_when_it_is_back() -> None:
    with StrictCluster() as fake:
        fake.create_topic("t", 2)
        clock = Comeback(4, lambda: fake.start_node(1))
        client = client_of(fake, clock)
        assert offsets(client, clock) == [0, 0]
        fake.stop_node(1)
        assert offsets(client, clock) == [0, 0]
        assert len(clock.sleeps) >= 4
        client.close()


def test_back_offs_grow_and_end_at_the_deadline(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.change_always("ListOffsets", error(6))
    with pytest.raises(RetriableError, match=r"NOT_LEADER_OR_FOLLOWER: gave up listing offsets: listing the offset of t-0"):
        offsets(client, clock, ms=4_000)
    assert clock.sleeps[:8] == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    assert sum(clock.sleeps) == pytest.approx(4.0)


def test_another_broker_is_asked_when_one_is_gone(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    client.metadata(None, clock.deadline())
    fake.move_leader(("t", 0), 2)
    fake.stop_node(1)
    assert offsets(client, clock) == [0, 0]
    assert client.metadata([], clock.deadline()).brokers.keys() == {2}


# --- a broker that no longer hears of changes ---


def test_a_leader_is_asked_for_at_another_broker_where_the_answer_of_the_first_one_is_old() -> None:
    """A broker that has lost its controllers serves the metadata of before."""
    with StrictCluster(nodes=3) as fake:
        fake.create_topic("t", 2)
        clock = SleepingClock()
        client = client_of(fake, clock)
        old = client.metadata(["t"], clock.deadline())
        is_old = False

        def be_old() -> None:
            nonlocal is_old
            is_old = True

        def answer_as_before(response: Any) -> None:
            nonlocal is_old
            for topic in response.topics if is_old else ():
                for partition in topic.partitions:
                    partition.leader_id = old.topics["t"].partitions[partition.partition_index].leader
            is_old = False

        fake.alter_responses("Metadata", answer_as_before)
        fake.change("Metadata", *[after(be_old)] * 1_000, node_id=1)
        fake.move_leader(("t", 0), 3)
        assert offsets(client, clock) == [0, 0]
        client.close()


def test_a_former_leader_is_not_asked_again_where_a_later_answer_is_older() -> None:
    """It still takes itself for the leader, and reports the end of its log."""
    with StrictCluster(nodes=3) as fake:
        fake.create_topic("t", 2)
        clock = SleepingClock()
        client = client_of(fake, clock)
        keys = [TopicPartition("t", 0), TopicPartition("t", 1)]
        old = client.metadata(["t"], clock.deadline()).topics["t"].partitions
        fake.move_leader(("t", 0), 3)
        client.metadata(["t"], clock.deadline())

        def answer_as_before(response: Any) -> None:
            for topic in response.topics:
                for partition in topic.partitions:
                    before = old[partition.partition_index]
                    partition.leader_id, partition.leader_epoch = before.leader, before.leader_epoch

        fake.alter_responses("Metadata", answer_as_before)
        for _ in range(3):
            client.forget_metadata()
            leaders = client.leaders(keys, clock.deadline())
            assert [leaders[key].leader for key in keys] == [3, old[1].leader]
        client.close()


def test_leaders_of_a_topic_that_was_created_again_begin_with_a_lower_epoch() -> None:
    with StrictCluster(nodes=3) as fake:
        fake.create_topic("t")
        clock = SleepingClock()
        client = client_of(fake, clock)
        fake.move_leader(("t", 0), 3)
        client.metadata(["t"], clock.deadline())
        fake.delete_topic("t")
        fake.create_topic("t")
        client.forget_metadata()
        [leader] = client.leaders([TopicPartition("t", 0)], clock.deadline()).values()
        assert (leader.leader, leader.leader_epoch) == (fake.log("t").leader, 0)
        client.close()


def test_a_coordinator_is_asked_for_at_another_broker_where_the_first_one_names_a_former_one() -> None:
    with StrictCluster(nodes=3) as fake:
        clock = SleepingClock()
        client = client_of(fake, clock)
        client.metadata([], clock.deadline())
        is_old = False

        def be_old() -> None:
            nonlocal is_old
            is_old = True

        def name_the_former_one(response: Any) -> None:
            nonlocal is_old
            if is_old:
                response.node_id, (response.host, response.port) = 1, fake.nodes[1]
            is_old = False

        fake.alter_responses("FindCoordinator", name_the_former_one)
        fake.change("FindCoordinator", *[after(be_old)] * 1_000, node_id=1)
        fake.move_coordinator(CoordinatorKind.TXN.value, 3)
        assert init_producer_id(client, "m-0", 60_000, clock.deadline()).producer_epoch == 0
        client.close()


# --- another cluster at the same addresses ---


@pytest.fixture
def other() -> Iterator[StrictCluster]:
    """Yield a cluster that is reached by a bootstrap name once the brokers of the first one are gone."""
    with StrictCluster(cluster_id="other-cluster") as cluster:
        yield cluster


@pytest.fixture
def client_of_both(fake: StrictCluster, other: StrictCluster, clock: SleepingClock) -> Iterator[Cluster]:
    config = ClientConfig.from_properties({"bootstrap.servers": f"{fake.bootstrap},{other.bootstrap}"})
    cluster = Cluster(config, clock=clock, sleep=clock.sleep, jitter=lambda: 1.0)
    cluster.metadata(["t"], clock.deadline())
    yield cluster
    cluster.close()


def test_another_cluster_is_not_listened_to(
    fake: StrictCluster, other: StrictCluster, client_of_both: Cluster, clock: SleepingClock
) -> None:
    fake.stop_node(1)
    fake.stop_node(2)
    with pytest.raises(RetriableError, match=r"OTHER_CLUSTER|cannot connect"):
        client_of_both.metadata(["t"], clock.deadline(500))
    with pytest.raises(RetriableError, match=r"OTHER_CLUSTER: .* answers as cluster other-cluster, not fake-cluster"):
        client_of_both.begin_metadata(["t"], clock.deadline(500)).receive(clock.deadline(500))
    fake.start_node(1)
    fake.start_node(2)
    assert client_of_both.metadata(["t"], clock.deadline()).cluster_id == "fake-cluster"
    assert offsets(client_of_both, clock) == [0, 0]


def test_topics_are_not_gone_because_another_cluster_lacks_them(
    fake: StrictCluster, client_of_both: Cluster, clock: SleepingClock
) -> None:
    topic_id = client_of_both.metadata(["t"], clock.deadline()).topics["t"].topic_id
    fake.stop_node(1)
    fake.stop_node(2)
    with pytest.raises(RetriableError):
        gone_topics(client_of_both, {"t": topic_id}, clock.deadline(2_000))


def test_nothing_is_asked_of_the_coordinator_of_another_cluster(
    fake: StrictCluster, other: StrictCluster, client_of_both: Cluster, clock: SleepingClock
) -> None:
    """It would begin and end transactions of the same transactional ids."""
    txn = init_producer_id(client_of_both, "m-0", 60_000, clock.deadline())
    fake.stop_node(1)
    fake.stop_node(2)
    with pytest.raises(OutcomeUnknownError):
        end_txn(client_of_both, txn, True, clock.deadline(500))
    with pytest.raises(RetriableError):
        client_of_both.topic_configs(["t"], clock.deadline(500))
    assert {request.api for request in other.received} <= {"ApiVersions", "Metadata"}


def test_a_worker_follows_its_driver_to_another_cluster_and_asks_anew_without_one(
    fake: StrictCluster, other: StrictCluster, client_of_both: Cluster, clock: SleepingClock
) -> None:
    """A worker outlives runs: an operator may have replaced the cluster."""
    other.create_topic("u")
    driver = client_of(other, clock)
    known = driver.known(driver.metadata(["u"], clock.deadline()), (), PathSpeeds(), is_new=False)
    driver.close()
    client_of_both.connection(1, "control", clock.deadline())
    client_of_both.learn(known)
    u = TopicPartition("u", 0)
    assert client_of_both.list_offsets({u: -1}, UNCOMMITTED, clock.deadline())[u].offset == 0


@pytest.mark.slow
def test_a_silent_broker_costs_one_timeout_and_then_the_next_one_is_asked(fake: StrictCluster, clock: SleepingClock) -> None:
    client = client_of(fake, clock, request_timeout_ms=200, socket_connection_setup_timeout_ms=200)
    client.metadata(None, clock.deadline())
    fake.change("Metadata", held(threading.Event()))
    fake.change("ApiVersions", held(threading.Event()))
    assert client.metadata(None, clock.deadline()).topics.keys() == {"t"}
    client.close()


@pytest.mark.slow
def test_a_broker_that_stays_silent_does_not_keep_the_others_from_being_asked(fake: StrictCluster) -> None:
    """It accepts connections, and one attempt is as long as the setup of one connection may be."""
    times = {"request.timeout.ms": 200, "socket.connection.setup.timeout.ms": 200}
    client = Cluster(ClientConfig.from_properties({"bootstrap.servers": fake.bootstrap, **times}))
    client.metadata(None, Deadline.after_ms(20_000, time.monotonic))
    fake.move_leader(("t", 0), 2)
    is_over = threading.Event()
    fake.change("Metadata", held(is_over), node_id=1)
    fake.change("ApiVersions", *[held(is_over)] * 50, node_id=1)
    assert client.metadata(None, Deadline.after_ms(5_000, time.monotonic)).topics.keys() == {"t"}
    client.close()


@pytest.mark.slow
def test_leaders_are_not_waited_for_longer_than_one_request_may_take(fake: StrictCluster, clock: SleepingClock) -> None:
    client = client_of(fake, clock, request_timeout_ms=200)
    fake.change("Metadata", held(threading.Event()))
    with pytest.raises(RetriableError, match=r"receiving from .*timed out"):
        client.leaders([A], clock.deadline(3_600_000))
    client.close()


def test_one_connection_per_broker_and_purpose_is_kept(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    for _ in range(3):
        offsets(client, clock)
        client.topic_configs(["t"], clock.deadline())
        client.connection(1, "fetch", clock.deadline())
    bootstrap, control, fetch = 1, 2, 1
    assert fake.connections == bootstrap + control + fetch


def test_an_idle_connection_that_its_broker_has_closed_is_not_used_again(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    """Nobody has sent a request there that could have failed."""
    lost = client.connection(1, "produce", clock.deadline())
    fake.stop_node(1)
    with pytest.raises(RetriableError, match="cannot connect"):
        client.connection(1, "produce", clock.deadline())
    fake.start_node(1)
    second = client.connection(1, "produce", clock.deadline())
    assert second is not lost
    assert lost.is_closed
    assert client.connection(1, "produce", clock.deadline()) is second


def test_a_broker_that_is_too_old_is_refused_in_one_line_with_all_that_it_lacks(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    def other(response: Any) -> None:
        for api_key in response.api_keys:
            if api_key.api_key == API_KEYS["ListOffsets"]:
                api_key.max_version = 5
            if api_key.api_key == API_KEYS["Fetch"]:
                api_key.max_version = 11

    fake.not_offered = frozenset({"EndTxn"})
    fake.alter_responses("ApiVersions", other)
    with pytest.raises(BrokerTooOldError) as caught:
        client.metadata([], clock.deadline())
    assert caught.value.problems == (
        f"broker {fake.bootstrap.split(',')[0]} is too old: source and target need Kafka 2.8 or later; "
        "it offers ListOffsets 0 to 5 (needed: 6), no EndTxn (needed: 3), Fetch 0 to 11 (needed: 12)",
    )


def test_a_broker_that_is_newer_than_what_is_known_is_refused_as_such(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    def other(response: Any) -> None:
        for api_key in response.api_keys:
            if api_key.api_key == API_KEYS["Fetch"]:
                api_key.min_version, api_key.max_version = 13, 20

    fake.alter_responses("ApiVersions", other)
    with pytest.raises(
        ConfigError, match=r"newer than .*: install a later one; .*offers Fetch 13 to 20 \(needed: 12\)$"
    ) as caught:
        client.metadata([], clock.deadline())
    assert type(caught.value) is ConfigError


def test_a_broker_that_does_not_know_api_versions_is_too_old(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.change("ApiVersions", Change(reply=lambda frame: (10).to_bytes(4, "big") + frame[4:8] + b"\x00\x23" + bytes(4)))
    with pytest.raises(BrokerTooOldError, match=r"too old.*Kafka 2.8 or later"):
        client.metadata([], clock.deadline())


def test_a_broker_without_describe_transactions_will_do_until_it_is_asked_for_them(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.not_offered = frozenset({"DescribeTransactions"})
    assert offsets(client, clock) == [0, 0]
    with pytest.raises(BrokerTooOldError, match=r"^broker .* offers no DescribeTransactions: Kafka 3\.0 or later is needed$"):
        describe_txn(client, "m-0", clock.deadline())
    # Its coordinator and the connection to it are known now: the request that is sent ahead could not be sent either.
    begun = begin_describe_txn(client, "m-0", clock.deadline())
    with pytest.raises(BrokerTooOldError, match="offers no DescribeTransactions"):
        describe_txn(client, "m-0", clock.deadline(), begun=begun)


# --- what is asked ---


def test_latest_is_the_last_stable_offset_only_for_committed_readers(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.seed(("t", 0), batch(0, 5), batch(5, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
    listed = {
        isolation: client.list_offsets({A: -1}, isolation, clock.deadline())[A].offset for isolation in (UNCOMMITTED, COMMITTED)
    }
    assert listed == {UNCOMMITTED: 7, COMMITTED: 5}


def test_earliest_and_times_are_listed_and_no_such_record_is_minus_one(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.seed(("t", 0), batch(0, 5), batch(5, 5, timestamp=2_000))
    fake.log("t").delete_records_before(3)

    def listed(timestamp: int) -> ListedOffset:
        return client.list_offsets({A: timestamp}, UNCOMMITTED, clock.deadline())[A]

    assert listed(-2).offset == 3
    assert (listed(1_500).offset, listed(1_500).timestamp_ms) == (5, 2_000)
    assert listed(2_001).offset == -1


@pytest.mark.parametrize("code", [3, 5, 6, 7, 56, 74, 75, 78])
def test_codes_of_moving_leaders_are_asked_again(fake: StrictCluster, client: Cluster, clock: SleepingClock, code: int) -> None:
    fake.seed(("t", 1), batch(0, 5))
    fake.change("ListOffsets", error(code, ("t", 1)), error(code))
    assert offsets(client, clock) == [0, 5]


ASKED: dict[str, Callable[[Cluster, SleepingClock], object]] = {
    "Metadata": lambda client, clock: client.metadata(["t"], clock.deadline(500)),
    "ListOffsets": lambda client, clock: offsets(client, clock, ms=500),
    "DescribeConfigs": lambda client, clock: client.topic_configs(["t"], clock.deadline(500)),
    "DescribeProducers": lambda client, clock: client.describe_producers([A, B], clock.deadline(500)),
    "FindCoordinator": lambda client, clock: client.coordinator(CoordinatorKind.TXN, "x", clock.deadline(500)),
    "ApiVersions": lambda client, clock: client.metadata([], clock.deadline(500)),
}


@pytest.mark.parametrize("api", ["ListOffsets", "DescribeConfigs", "DescribeProducers", "FindCoordinator"])
def test_a_refused_authorisation_is_for_the_operator_and_never_asked_again(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, api: str
) -> None:
    fake.change(api, error(29))
    with pytest.raises(ConfigError, match="TOPIC_AUTHORIZATION_FAILED"):
        ASKED[api](client, clock)
    assert fake.asked(api) == 1


@pytest.mark.slow
@pytest.mark.parametrize("api", [api for api in ASKED if api != "FindCoordinator"])  # its response names a host to connect to
def test_changed_bytes_of_a_response_are_read_or_refused_and_nothing_else(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, api: str
) -> None:
    fake.seed(("t", 0), batch(0, 5, producer_id=4, producer_epoch=0, base_sequence=0))
    dice = random.Random(7)

    for _ in range(60):
        fake.change(api, hostile(dice))
        with contextlib.suppress(RetriableError, ConfigError):
            ASKED[api](client, clock)
        client.close()


@pytest.mark.parametrize(
    ("api", "responses"), [("ListOffsets", "topics"), ("DescribeProducers", "topics"), ("DescribeConfigs", "results")]
)
def test_a_response_that_leaves_something_out_is_asked_for_again(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, api: str, responses: str
) -> None:
    left_out: list[Any] = []

    def leave_out_once(response: Any) -> None:
        if not left_out:
            left_out.append(getattr(response, responses).pop())

    fake.alter_responses(api, leave_out_once)
    ASKED[api](client, clock)
    assert left_out
    assert fake.asked(api) >= 2


def test_settings_of_a_topic_are_those_of_the_broker(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    configs: dict[str, Any] = {"max.message.bytes": "500"}
    fake.create_topic("small", **configs)
    actual = client.topic_configs(["t", "small"], clock.deadline())
    assert [actual[name]["max.message.bytes"] for name in ("t", "small")] == ["1048588", "500"]


def test_settings_of_a_broker_are_its_own(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.broker_configs = {"transaction.max.timeout.ms": "60000"}
    assert client.broker_configs(1, clock.deadline()) == {"transaction.max.timeout.ms": "60000"}
    fake.change("DescribeConfigs", error(31))
    with pytest.raises(ConfigError) as caught:
        client.broker_configs(1, clock.deadline())
    first = fake.bootstrap.split(",")[0]
    assert str(caught.value) == (
        f"reading the settings of broker 1: the cluster at {first} answered CLUSTER_AUTHORIZATION_FAILED: "
        "grant DescribeConfigs on the cluster"
    )


def test_producers_are_described_by_their_leaders(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.seed(("t", 0), batch(0, 5, attributes=0x10, producer_id=4, producer_epoch=2, base_sequence=0))
    fake.seed(("t", 1), batch(0, 5, producer_id=5, producer_epoch=0, base_sequence=0))
    actual = client.describe_producers([A, B], clock.deadline())
    at_ms = header_of(batch(0, 5)).max_timestamp
    assert actual == {
        A: (ProducerState(4, 2, 0, at_ms, last_sequence=4),),
        B: (ProducerState(5, 0, -1, at_ms, last_sequence=4),),
    }


def test_a_coordinator_is_looked_for_once_and_again_when_forgotten(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    for _ in range(2):
        client.coordinator(CoordinatorKind.TXN, "x", clock.deadline())
    assert fake.asked("FindCoordinator") == 1
    client.forget_coordinator(CoordinatorKind.TXN, "x")
    client.coordinator(CoordinatorKind.TXN, "x", clock.deadline())
    client.coordinator(CoordinatorKind.GROUP, "x", clock.deadline())
    assert [(request.key, request.key_type) for request in fake.bodies("FindCoordinator")] == [("x", 1), ("x", 1), ("x", 0)]


# --- forks ---


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_its_own_connections_and_leaves_its_parents_alone(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.seed(("t", 0), batch(0, 5))
    assert offsets(client, clock) == [5, 0]
    before = fake.connections
    child = os.fork()
    if not child:
        signal.alarm(30)
        good = False
        try:
            good = offsets(client, clock) == [5, 0]
            client.close()
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    of_the_child = fake.connections - before
    assert of_the_child >= 2
    assert offsets(client, clock) == [5, 0]
    assert fake.connections == before + of_the_child


# --- the ends of many logs, again and again ---


def latest(client: Cluster, clock: SleepingClock, topic_partitions: list[TopicPartition], ms: float = 20_000) -> list[int]:
    offsets, wrong = client.latest_offsets(topic_partitions, UNCOMMITTED, clock.deadline(ms))
    assert not wrong
    return [offsets[topic_partition] for topic_partition in topic_partitions]


def test_latest_offsets_are_asked_in_the_same_words_and_follow_the_log(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    topic_partitions = [A, B]
    assert latest(client, clock, topic_partitions) == [0, 0]
    fake.seed(("t", 0), batch(0, 5))
    asked = fake.asked("Metadata")
    assert latest(client, clock, topic_partitions) == latest(client, clock, topic_partitions) == [5, 0]
    assert fake.asked("Metadata") == asked


@pytest.mark.thorough
@pytest.mark.parametrize("change", [error(6, ("t", 1)), error(5, ("t", 0)), held(threading.Event()), hostile(random.Random(3))])
def test_latest_offsets_that_are_not_answered_are_asked_the_long_way(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, change: Change
) -> None:
    fake.seed(("t", 1), batch(0, 7))
    fake.change("ListOffsets", change)
    assert latest(client, clock, [A, B], ms=4_000) == [0, 7]  # a leader that is silent takes half of it


def test_latest_offsets_are_asked_of_the_leader_of_now(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    topic_partitions = [A, B]
    fake.seed(("t", 0), batch(0, 5))
    assert latest(client, clock, topic_partitions) == [5, 0]
    fake.move_leader(("t", 0), 2)
    assert latest(client, clock, topic_partitions) == [5, 0]


def test_latest_offsets_that_may_not_be_asked_are_for_the_operator(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.create_topic("u", 1)
    other = TopicPartition("u", 0)
    fake.change_always("ListOffsets", error(29, ("t", 0)))
    offsets, wrong = client.latest_offsets([A, other], UNCOMMITTED, clock.deadline())
    assert offsets == {other: 0}
    refused = wrong[A]
    assert isinstance(refused, TopicAccessError)
    assert refused.topics == ("t",)
    with pytest.raises(ConfigError, match="TOPIC_AUTHORIZATION_FAILED"):
        client.latest_offsets([A], UNCOMMITTED, clock.deadline())


def test_a_leader_that_does_not_answer_keeps_back_the_latest_offsets_of_its_own_partitions_only(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.seed(("t", 0), batch(0, 5))
    topic_partitions = [A, B]
    fake.change_always("ListOffsets", error(56, ("t", 1)))
    offsets, wrong = client.latest_offsets(topic_partitions, UNCOMMITTED, clock.deadline())
    assert offsets == {A: 5}
    assert {topic_partition: getattr(error, "error_name", None) for topic_partition, error in wrong.items()} == {
        B: "KAFKA_STORAGE_ERROR"
    }
    fake.change_always("ListOffsets", None)
    assert latest(client, clock, topic_partitions) == [5, 0]
    fake.stop_node(2)
    offsets, wrong = client.latest_offsets(topic_partitions, UNCOMMITTED, clock.deadline())
    assert (offsets, set(wrong)) == ({A: 5}, {B})


def test_all_topics_are_the_same_object_until_something_of_them_changes(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    listed = client.metadata(None, clock.deadline())
    client.forget_metadata()
    assert client.metadata(None, clock.deadline()) is listed
    fake.create_topic("u", 1)
    grown = client.metadata(None, clock.deadline())
    assert grown is not listed
    assert {"t", "u"} <= grown.topics.keys()
    assert client.metadata(None, clock.deadline()) is grown


def test_a_tuple_of_topics_is_the_same_object_until_something_of_them_changes(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    fake.create_topic("u", 1)
    names = ("t", "u")
    listed = client.metadata(names, clock.deadline())
    everything = client.metadata(None, clock.deadline())
    assert client.metadata(names, clock.deadline()) is listed
    assert client.metadata(None, clock.deadline()) is everything
    assert listed.topics.keys() == {"t", "u"}
    fewer = ("t",)
    assert client.metadata(fewer, clock.deadline()).topics.keys() == {"t"}
