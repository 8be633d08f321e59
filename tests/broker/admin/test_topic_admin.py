"""Topics of a cluster are created, given partitions and settings, deleted and freed of records, each with its own answer."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.fakes.changes import Change, after, dropped_after, dropped_before, error
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster, delete_topic_by_id
from shallow_mirror.broker.admin import (
    TopicSpec,
    add_partitions,
    delete_records,
    delete_topics,
    ensure_topics,
    set_topic_configs,
    topic_admin,
)
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, RetriableError
from shallow_mirror.types import TopicPartition

SPEC = TopicSpec("t", 1, None, {})
A = TopicPartition("a", 0)


def within(ms: float) -> Deadline:
    return Deadline.after_ms(ms, time.monotonic)


def connect(bootstrap: str) -> Cluster:
    return Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap, "request.timeout.ms": 5_000}))


@pytest.fixture
def nodes() -> Iterator[StrictCluster]:
    with StrictCluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: StrictCluster) -> Iterator[Cluster]:
    with closing(connect(nodes.bootstrap)) as cluster:
        yield cluster


def settings_of(**settings: str) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def partitions(nodes: StrictCluster, topic: str) -> int:
    return sum(name == topic for name, _ in nodes.logs)


# --- each item has an answer of its own ---


def test_topics_are_created_with_their_settings_and_those_that_exist_stay(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.create_topic("old", 1, **settings_of(retention_ms="7"))
    settings = {"retention.ms": "5", "cleanup.policy": "compact"}
    ensure_topics(cluster, [TopicSpec("new", 4, 2, settings), TopicSpec("old", 3, None, {}), SPEC], within(10_000))
    assert {name: partitions(nodes, name) for name in nodes.topic_ids} == {"old": 1, "new": 4, "t": 1}
    assert nodes.log("new").configs | settings == nodes.log("new").configs
    assert (nodes.log("new").replicas, nodes.log("t").replicas, nodes.log("old").configs["retention.ms"]) == (2, 1, "7")


def test_every_refusal_is_named_with_the_brokers_reason_and_the_others_are_created(
    nodes: StrictCluster, cluster: Cluster
) -> None:
    nodes.topic_policy = lambda name, _configs: "topics need a team" if name == "nobodys" else None
    nodes.change("CreateTopics", error(29, ("secret", -1)))
    specs = [
        SPEC,
        TopicSpec("many", 1, 5, {}),
        TopicSpec("none", 0, None, {}),
        TopicSpec("with space", 1, None, {}),
        TopicSpec("typo", 1, None, {"cleanup.policies": "compact"}),
        TopicSpec("value", 1, None, {"retention.ms": "long"}),
        TopicSpec("nobodys", 1, None, {}),
        TopicSpec("secret", 1, None, {}),
    ]
    with pytest.raises(ConfigError) as refused:
        ensure_topics(cluster, specs, within(10_000))
    assert list(nodes.topic_ids) == ["t"]
    assert refused.value.problems == (
        "target topic many cannot be created: INVALID_REPLICATION_FACTOR: Unable to replicate the partition 5 time(s): The target "
        "replication factor of 5 cannot be reached because only 3 broker(s) are registered.",
        "target topic none cannot be created: INVALID_PARTITIONS: Number of partitions was set to an invalid non-positive value.",
        "target topic with space cannot be created: INVALID_TOPIC_EXCEPTION: Topic name is invalid",
        "target topic typo cannot be created: INVALID_CONFIG: Unknown topic config name: cleanup.policies",
        "target topic value cannot be created: INVALID_CONFIG: Invalid value long for configuration retention.ms",
        "target topic nobodys cannot be created: POLICY_VIOLATION: topics need a team",
        "target topic secret cannot be created: TOPIC_AUTHORIZATION_FAILED: grant Create on topic secret",
    )


@pytest.mark.slow
def test_partitions_are_added_and_never_removed(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.create_topic("grows", 1)
    nodes.create_topic("has_more", 3)
    add_partitions(cluster, {"grows": 4, "has_more": 2}, within(10_000))
    assert (partitions(nodes, "grows"), partitions(nodes, "has_more")) == (4, 3)
    with pytest.raises(ConfigError, match="target topic gone cannot be given more partitions: UNKNOWN_TOPIC_OR_PARTITION"):
        add_partitions(cluster, {"gone": 2}, within(60_000))


def test_settings_are_changed_one_by_one_and_refusals_returned(nodes: StrictCluster, cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        nodes.create_topic(name, 1, **settings_of(retention_ms="5", segment_ms="9", retention_bytes="4"))
    nodes.change("IncrementalAlterConfigs", error(29, ("c", -1)))
    changes: dict[str, dict[str, str | None]] = {
        "a": {"retention.ms": "6", "segment.ms": None, "retention.bytes": None},
        "b": {"retention.ms": "6", "retention": "7"},
        "c": {"retention.ms": "6"},
    }
    assert set_topic_configs(cluster, changes, within(10_000)) == {
        "b": "INVALID_CONFIG: Unknown topic config name: retention",
        "c": "TOPIC_AUTHORIZATION_FAILED: grant AlterConfigs on topic c",
    }
    configs = nodes.log("a").configs
    assert (configs["retention.ms"], configs["segment.ms"], "retention.bytes" in configs) == ("6", "604800000", False)
    assert nodes.log("b").configs["retention.ms"] == "5"


def test_topics_are_deleted_by_name_or_by_id_and_missing_ones_passed_over(nodes: StrictCluster, cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        nodes.create_topic(name)
    delete_topics(cluster, ["a", "gone", "a"], within(10_000))
    other, own = (base64.urlsafe_b64encode(each.bytes).decode().rstrip("=") for each in map(nodes.topic_ids.get, "bc") if each)
    delete_topic_by_id(cluster, "c", own, within(10_000))
    delete_topic_by_id(cluster, "c", own, within(10_000))
    assert list(nodes.topic_ids) == ["b"]
    nodes.change("DeleteTopics", error(29), error(73))
    with pytest.raises(
        ConfigError, match="target topic b cannot be deleted: TOPIC_AUTHORIZATION_FAILED: grant Delete on topic b"
    ):
        delete_topic_by_id(cluster, "b", other, within(10_000))
    with pytest.raises(ConfigError, match="target topic b cannot be deleted: TOPIC_DELETION_DISABLED"):
        delete_topics(cluster, ["b"], within(10_000))


@pytest.mark.slow
def test_records_are_deleted_at_every_leader_and_refusals_named(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.create_topic("many", 3)
    nodes.create_topic("compacted", 1, **settings_of(cleanup_policy="compact"))
    for topic_partition in list(nodes.logs):
        nodes.seed(topic_partition, batch(0, 1), batch(1, 1))
    starts = {TopicPartition("many", partition): 1 for partition in range(3)}
    delete_records(cluster, starts, within(10_000))
    delete_records(cluster, starts, within(10_000))
    assert [nodes.log("many", partition).log_start_offset for partition in range(3)] == [1, 1, 1]
    assert {request.node_id for request in nodes.received if request.api == "DeleteRecords"} == {1, 2, 3}
    beyond = {TopicPartition("many", 1): 9, TopicPartition("compacted", 0): 1, TopicPartition("gone", 0): 1}
    with pytest.raises(ConfigError) as refused:
        delete_records(cluster, beyond, within(10_000))
    assert set(refused.value.problems) == {
        "target topic many-1 cannot be freed of its leading fillers: OFFSET_OUT_OF_RANGE",
        "target topic compacted-0 cannot be freed of its leading fillers: POLICY_VIOLATION",
        "target topic gone-0 cannot be freed of its leading fillers: UNKNOWN_TOPIC_OR_PARTITION",
    }
    nodes.change("DeleteRecords", error(29))
    with pytest.raises(ConfigError, match=r"target topic many-1 .*: TOPIC_AUTHORIZATION_FAILED: grant Delete on topic many$"):
        delete_records(cluster, {TopicPartition("many", 1): 2}, within(10_000))


# --- what passes is asked again ---


def test_the_controller_is_asked_and_looked_for_where_it_moves(nodes: StrictCluster, cluster: Cluster) -> None:
    """With ZooKeeper the other brokers answer NOT_CONTROLLER, and metadata may be older than the election."""
    nodes.controller_id = 2
    ensure_topics(cluster, [SPEC], within(10_000))
    nodes.controller_id = 3
    add_partitions(cluster, {"t": 2}, within(10_000))
    delete_topics(cluster, ["t"], within(10_000))
    asked = [(request.api, request.node_id) for request in nodes.received if request.api.startswith(("Create", "Delete"))]
    assert asked == [("CreateTopics", 2), ("CreatePartitions", 2), ("CreatePartitions", 3), ("DeleteTopics", 3)]


@pytest.mark.slow
def test_a_controller_that_is_elected_late_is_waited_for_until_the_deadline(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.controller_id = -1
    with pytest.raises(
        RetriableError, match=r"^NOT_CONTROLLER: target topic t was not created: the cluster has no controller now"
    ):
        ensure_topics(cluster, [SPEC], within(300))

    def elect() -> None:
        nodes.controller_id = 2

    asked = nodes.asked("Metadata")
    nodes.change("Metadata", *[Change()] * 2, after(elect))
    ensure_topics(cluster, [SPEC], within(10_000))
    assert (list(nodes.topic_ids), nodes.asked("Metadata") - asked) == (["t"], 3)


def test_only_what_is_throttled_is_asked_again_and_not_sooner_than_the_broker_says(nodes: StrictCluster) -> None:
    slept: list[float] = []
    client = ClientConfig.from_properties({"bootstrap.servers": nodes.bootstrap})
    nodes.change("CreateTopics", Change(error_code=89, only=("b", -1), throttle_ms=700))
    with closing(Cluster(client, sleep=slept.append)) as cluster:
        ensure_topics(cluster, [TopicSpec(name, 1, None, {}) for name in "ab"], within(10_000))
    assert [[topic.name for topic in body.topics] for body in nodes.bodies("CreateTopics")] == [["a", "b"], ["b"]]
    assert slept == [0.7]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "act"),
    [
        ("CreateTopics", lambda cluster: ensure_topics(cluster, [TopicSpec("new", 1, None, {})], within(10_000))),
        ("CreatePartitions", lambda cluster: add_partitions(cluster, {"a": 2}, within(10_000))),
        ("DeleteTopics", lambda cluster: delete_topics(cluster, ["a"], within(10_000))),
        ("DeleteRecords", lambda cluster: delete_records(cluster, {A: 1}, within(10_000))),
        ("IncrementalAlterConfigs", lambda cluster: set_topic_configs(cluster, {"a": {"retention.ms": "6"}}, within(10_000))),
    ],
)
@pytest.mark.parametrize("lost", [dropped_before(), dropped_after(), error(7, is_performed=True), error(7), error(13)])
def test_a_lost_request_or_response_is_repeated_and_leaves_nothing_undecided(
    nodes: StrictCluster, cluster: Cluster, api: str, act: Callable[[Cluster], Any], lost: Change
) -> None:
    nodes.create_topic("a")
    nodes.seed(("a", 0), batch(0, 1), batch(1, 1))
    nodes.change(api, lost)
    assert act(cluster) in (None, {})
    assert nodes.asked(api) == 2


def test_records_are_deleted_at_the_leader_that_a_partition_moves_to(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.create_topic("a", 2)
    for partition in range(2):
        nodes.seed(("a", partition), batch(0, 1), batch(1, 1))
    cluster.leaders([A, TopicPartition("a", 1)], within(10_000))
    nodes.move_leader(("a", 0), 3)
    delete_records(cluster, {A: 1, TopicPartition("a", 1): 1}, within(10_000))
    assert [nodes.log("a", partition).log_start_offset for partition in range(2)] == [1, 1]


def test_records_are_deleted_where_there_is_a_leader_and_the_partition_without_one_is_named(
    nodes: StrictCluster, cluster: Cluster
) -> None:
    nodes.create_topic("a", 2)
    for partition in range(2):
        nodes.seed(("a", partition), batch(0, 1), batch(1, 1))
    nodes.move_leader(("a", 1), -1)
    with pytest.raises(RetriableError, match=r"target topic a-1 was not freed of its leading fillers: a-1 has no leader"):
        delete_records(cluster, {A: 1, TopicPartition("a", 1): 1}, within(1_000))
    assert [nodes.log("a", partition).log_start_offset for partition in range(2)] == [1, 0]


def test_a_new_leader_that_does_not_know_its_high_watermark_yet_is_asked_again(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.create_topic("a")
    nodes.seed(("a", 0), batch(0, 1), batch(1, 1))
    nodes.change("DeleteRecords", error(1), error(1))
    delete_records(cluster, {A: 1}, within(10_000))
    assert nodes.log("a").log_start_offset == 1


def test_what_is_not_answered_in_time_is_no_refusal(nodes: StrictCluster) -> None:
    nodes.create_topic("a")
    for api in ("CreateTopics", "IncrementalAlterConfigs"):
        nodes.change_always(api, error(7))
    clock = SleepingClock()  # so that no deadline ends while an attempt is under way
    with closing(client_of(nodes, clock)) as cluster:
        with pytest.raises(RetriableError, match=r"^REQUEST_TIMED_OUT: target topic t was not created: by the test"):
            ensure_topics(cluster, [SPEC], clock.deadline())
        not_set = set_topic_configs(cluster, {"a": {"retention.ms": "5"}}, clock.deadline())
        assert not_set == {"a": "REQUEST_TIMED_OUT: by the test"}
        nodes.alter_responses("DeleteTopics", lambda response: response.responses.clear())
        with pytest.raises(RetriableError, match="PROTOCOL: target topic a was not deleted: the answer leaves it out"):
            delete_topics(cluster, ["a"], clock.deadline())


@pytest.mark.slow
def test_a_broker_that_accepts_connections_and_is_silent_is_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, closing(connect(f"127.0.0.1:{silent.getsockname()[1]}")) as cluster:
        with pytest.raises(RetriableError, match="target topic t was not created"):
            ensure_topics(cluster, [SPEC], within(300))
        with pytest.raises(RetriableError, match="target topic t was not given more partitions"):
            add_partitions(cluster, {"t": 2}, within(300))
        with pytest.raises(RetriableError, match="target topic a-0 was not freed of its leading fillers"):
            delete_records(cluster, {A: 2}, within(300))
        assert set(set_topic_configs(cluster, {"t": {"retention.ms": "1"}}, within(300))) == {"t"}


def test_a_cluster_that_offers_no_administration_is_named(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.not_offered = frozenset({"CreateTopics"})
    with pytest.raises(BrokerTooOldError, match=r"offers no CreateTopics: Kafka 2.8 or later is needed"):
        ensure_topics(cluster, [SPEC], within(10_000))


# --- requests are bounded ---


def test_many_topics_are_created_in_requests_that_a_controller_takes(
    nodes: StrictCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_admin, "RECORDS_PER_REQUEST", 10)
    specs = [
        *(TopicSpec(f"t{number}", 2, None, {"retention.ms": "1"}) for number in range(5)),
        TopicSpec("large", 20, None, {}),
        TopicSpec("last", 1, None, {}),
    ]
    ensure_topics(cluster, specs, within(10_000))
    sizes = [len(body.topics) for body in nodes.bodies("CreateTopics")]
    assert (sizes, len(nodes.topic_ids)) == ([2, 2, 1, 1, 1], 7)


def test_nothing_to_do_asks_for_nothing(nodes: StrictCluster, cluster: Cluster) -> None:
    ensure_topics(cluster, [], within(1_000))
    delete_topics(cluster, [], within(1_000))
    delete_records(cluster, {}, within(1_000))
    add_partitions(cluster, {}, within(1_000))
    assert (set_topic_configs(cluster, {}, within(1_000)), nodes.received) == ({}, [])
