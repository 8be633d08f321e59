"""Every administrative request on every release, through SASL over TLS, by a user who may do everything and one who may not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from tests.matrix.releases import NEWEST, OLD, OLDEST, Release
from tests.security.certificates import Authority
from tests.support.deadlines import deadline, wait_until
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster, ConsumerGroups, CoordinatorKind, delete_groups, delete_topic_by_id
from shallow_mirror.broker.admin import (
    TopicSpec,
    add_partitions,
    delete_records,
    delete_topics,
    ensure_topics,
    set_topic_configs,
)
from shallow_mirror.broker.admin.access import Acl, AclClient, AclOperation, PatternKind, ResourceKind, ResourcePattern
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce import ProducePipeline
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener, has_kraft
from shallow_mirror.sinks.kafka.preserved import require_preserved_offsets
from shallow_mirror.sinks.kafka.preserved.offset_probe import PROBE_PREFIX
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, TopicPartition

pytestmark = pytest.mark.brokers

MIGHTY, POOR = "mighty", "poor"
_PASSWORD = "pa55-of-all"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{user}="{_PASSWORD}"' for user in (MIGHTY, POOR)
)
_SEQUENCE = IsolationLevel.READ_UNCOMMITTED


class Secured:
    """A broker with an authorizer and a SASL_SSL listener."""

    def __init__(self, folder: Path, release: Release) -> None:
        self.release, authority = release, Authority(folder, "ca")
        broker = authority.signed("broker", ("127.0.0.1",))
        self._ca_file = authority.identity.certificate_file
        keystore = folder / "broker.p12"  # no PEM: 2.8 wants its keys encrypted, and Java 17 cannot decrypt them there
        encryption = BestAvailableEncryption(_PASSWORD.encode())
        keystore.write_bytes(serialize_key_and_certificates(b"broker", broker.key, broker.certificate, None, encryption))
        listener = Listener(
            "SECURE",
            "SASL_SSL",
            {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(keystore),
                "ssl.keystore.password": _PASSWORD,
                "ssl.key.password": _PASSWORD,
                "sasl.enabled.mechanisms": "PLAIN",
                "plain.sasl.jaas.config": f"{_MODULE};",
            },
        )
        authorizer = (
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            if has_kraft(release.version)
            else "kafka.security.authorizer.AclAuthorizer"
        )
        properties = {"authorizer.class.name": authorizer, "super.users": f"User:ANONYMOUS;User:{MIGHTY}"}
        self.node = LocalKafka(folder / "node", release.version, properties=properties, listeners=(listener,))

    def client(self, user: str) -> ClientConfig:
        properties = {
            "bootstrap.servers": self.node.address_of("SECURE"),
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self._ca_file),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": _PASSWORD,
        }
        return ClientConfig.from_properties(properties, allows_literal_secrets=True)


@pytest.fixture(scope="module", params=[OLDEST, pytest.param(OLD, marks=pytest.mark.long), NEWEST], ids=str)
def secured(
    no_child_process_is_left: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"), request.param)
    with secured.node:
        yield secured


@pytest.fixture
def mighty(secured: Secured) -> Iterator[Cluster]:
    with closing(Cluster(secured.client(MIGHTY))) as cluster:
        yield cluster


@pytest.fixture
def poor(secured: Secured) -> Iterator[Cluster]:
    with closing(Cluster(secured.client(POOR))) as cluster:
        yield cluster


def existing(cluster: Cluster, names: Sequence[str]) -> dict[str, int]:
    topics = cluster.metadata(list(names), deadline()).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.error_code == 0}


def test_topics_are_created_grown_changed_and_deleted(mighty: Cluster, topic_name: str) -> None:
    names = [f"{topic_name}-{number}" for number in range(3)]
    settings = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    ensure_topics(mighty, [TopicSpec(names[0], 2, None, settings), TopicSpec(names[1], 1, 1, {})], deadline(30_000))
    ensure_topics(mighty, [TopicSpec(names[0], 1, None, {})], deadline(30_000))
    wait_until(lambda: existing(mighty, names) == {names[0]: 2, names[1]: 1})

    add_partitions(mighty, {names[0]: 3, names[1]: 1}, deadline(30_000))
    wait_until(lambda: existing(mighty, names) == {names[0]: 3, names[1]: 1})

    def configs(name: str) -> Mapping[str, str]:
        read = mighty.topic_configs([name], deadline(), keys=["retention.ms", "cleanup.policy"])
        return read[name]

    changes: dict[str, dict[str, str | None]] = {
        names[0]: {"retention.ms": "7200000", "cleanup.policy": None},
        names[1]: {"retention": "5"},
        names[2]: {"retention.ms": "5"},
    }
    refused = set_topic_configs(mighty, changes, deadline(30_000))
    assert refused.keys() == {names[1], names[2]}
    assert "retention" in refused[names[1]]
    assert refused[names[2]].startswith("UNKNOWN_TOPIC_OR_PARTITION")
    wait_until(lambda: configs(names[0]) == {"retention.ms": "7200000", "cleanup.policy": "delete"})

    topic_id = mighty.metadata([names[1]], deadline()).topics[names[1]].topic_id
    delete_topics(mighty, [names[0], names[2]], deadline(30_000))
    delete_topic_by_id(mighty, names[1], topic_id, deadline(30_000))
    delete_topic_by_id(mighty, names[1], topic_id, deadline(30_000))
    wait_until(lambda: not existing(mighty, names))


def test_what_a_cluster_cannot_do_is_named_item_by_item(mighty: Cluster, topic_name: str) -> None:
    specs = [
        TopicSpec(f"{topic_name}-good", 1, None, {}),
        TopicSpec(f"{topic_name}-many", 1, 3, {}),
        TopicSpec(f"{topic_name}-none", 0, None, {}),
        TopicSpec(f"{topic_name}-typo", 1, None, {"cleanup.policies": "compact"}),
    ]
    with pytest.raises(ConfigError) as refused:
        ensure_topics(mighty, specs, deadline(30_000))
    wait_until(lambda: existing(mighty, [spec.name for spec in specs]) == {f"{topic_name}-good": 1})
    many, none, typo = refused.value.problems
    assert many.startswith(f"target topic {topic_name}-many cannot be created: INVALID_REPLICATION_FACTOR: ")
    assert none.startswith(f"target topic {topic_name}-none cannot be created: INVALID_PARTITIONS: ")
    assert typo.startswith(f"target topic {topic_name}-typo cannot be created: INVALID_CONFIG: ")
    assert "cleanup.policies" in typo
    with pytest.raises(ConfigError, match=f"target topic {topic_name}-gone cannot be given more partitions: UNKNOWN_TOPIC"):
        add_partitions(mighty, {f"{topic_name}-gone": 2}, deadline(30_000))
    delete_topics(mighty, [f"{topic_name}-good"], deadline(30_000))


def test_records_are_deleted_up_to_an_offset(mighty: Cluster, topic_name: str) -> None:
    key = TopicPartition(topic_name, 0)
    ensure_topics(mighty, [TopicSpec(topic_name, 1, None, {})], deadline(30_000))
    wait_until(lambda: existing(mighty, [topic_name]) == {topic_name: 1})
    now_ms = int(time.time() * 1000)
    written = [memoryview(bytearray(batch(0, 1, timestamp=now_ms))) for _ in range(3)]
    pipeline = ProducePipeline(mighty, None, in_flight_requests=1, in_flight_bytes=1 << 20, deadline=deadline(30_000))
    pipeline.produce_all({key: written})
    delete_records(mighty, {key: 2}, deadline(30_000))
    assert mighty.list_offsets({key: EARLIEST_TIMESTAMP}, _SEQUENCE, deadline())[key].offset == 2
    with pytest.raises(ConfigError, match=f"target topic {topic_name}-0 cannot be freed .*: OFFSET_OUT_OF_RANGE"):
        delete_records(mighty, {key: 9}, deadline(30_000))
    delete_topics(mighty, [topic_name], deadline(30_000))


def test_groups_are_deleted_once_they_have_offsets(mighty: Cluster, topic_name: str) -> None:
    group = f"group-{topic_name}"
    ensure_topics(mighty, [TopicSpec(topic_name, 1, None, {})], deadline(30_000))
    wait_until(lambda: existing(mighty, [topic_name]) == {topic_name: 1})
    groups = ConsumerGroups(mighty, "cluster")
    assert groups.commit(group, {TopicPartition(topic_name, 0): (0, "")}, deadline(30_000)) == {}
    assert group in groups.listed(deadline(30_000))
    delete_groups(mighty, [group, f"{group}-missing"], deadline(30_000))
    assert group not in groups.listed(deadline(30_000))
    delete_topics(mighty, [topic_name], deadline(30_000))


def test_offsets_of_many_groups_are_those_of_each_group_alone(
    secured: Secured, mighty: Cluster, poor: Cluster, topic_name: str
) -> None:
    """With one request from Kafka 3.0 on, and with one for each group before."""
    ensure_topics(mighty, [TopicSpec(topic_name, 3, 1, {})], deadline(30_000))
    wait_until(lambda: existing(mighty, [topic_name]) == {topic_name: 3})
    groups, names = ConsumerGroups(mighty, "cluster"), [f"{topic_name}-{number}" for number in range(5)]
    offsets = {
        name: {TopicPartition(topic_name, at): (10 * number + at, "note" * (at % 2)) for at in range(number % 3 + 1)}
        for number, name in enumerate(names)
    }
    begun_commits = groups.begin_commits(offsets, deadline(30_000), ("one", "two"))
    for name in names:
        assert groups.commit(name, offsets[name], deadline(30_000), begun=begun_commits[name]) == {}
    begun = groups.begin_committed([*names, f"{topic_name}-missing"], deadline(30_000), ("one", "two"))
    assert len({id(begun[name]) for name in names}) == (len(names) if secured.release is OLDEST else 1)
    for name in names:
        fetched = groups.committed(name, deadline(30_000), begun=begun[name])
        assert {offset.topic_partition: (offset.offset, offset.metadata) for offset in fetched} == offsets[name]
        assert groups.committed(name, deadline(30_000)) == fetched
    missing = f"{topic_name}-missing"
    assert groups.committed(missing, deadline(30_000), begun=begun[missing]) == ()
    hidden = ConsumerGroups(poor, "cluster")
    for name in names:
        node_id = mighty.known_coordinator(CoordinatorKind.GROUP, name)
        assert node_id is not None
        poor.learn_coordinator(CoordinatorKind.GROUP, name, node_id)
    for name in names:
        begun = hidden.begin_committed(names, deadline(30_000), ("one",))
        with pytest.raises(ConfigError, match=f"reading the offsets of group {name}: GROUP_AUTHORIZATION_FAILED"):
            hidden.committed(name, deadline(30_000), begun=begun[name])


def test_acls_are_created_read_and_deleted_and_refusals_returned(secured: Secured, topic_name: str) -> None:
    client = AclClient(secured.client(MIGHTY), "cluster")
    acls = [
        Acl(ResourcePattern(kind, f"{topic_name}-{match}", match), "User:anna", operation)
        for kind, operation in ((ResourceKind.TOPIC, AclOperation.READ), (ResourceKind.GROUP, AclOperation.DELETE))
        for match in PatternKind
    ]
    odd = Acl(ResourcePattern(ResourceKind.CLUSTER, topic_name), "User:anna", AclOperation.ALTER)
    refused = client.create([*acls, odd])
    assert list(refused) == [odd]
    assert refused[odd].startswith("INVALID_REQUEST: ")

    def own() -> set[Acl]:
        return {acl for acl in client.read() if topic_name in acl.pattern.name}

    wait_until(lambda: own() == set(acls))
    assert client.delete([*acls[1:], odd]) == {}
    wait_until(lambda: own() == {acls[0]})
    assert client.delete(acls) == {}


def test_a_user_who_may_not_is_told_what_to_grant(secured: Secured, mighty: Cluster, poor: Cluster, topic_name: str) -> None:
    ensure_topics(mighty, [TopicSpec(topic_name, 1, None, {})], deadline(30_000))
    group, key = f"group-{topic_name}", TopicPartition(topic_name, 0)
    wait_until(lambda: existing(mighty, [topic_name]) == {topic_name: 1})
    described = Acl(ResourcePattern(ResourceKind.TOPIC, topic_name), f"User:{POOR}", AclOperation.DESCRIBE)
    of_group = Acl(ResourcePattern(ResourceKind.GROUP, group), f"User:{POOR}", AclOperation.DESCRIBE)
    acls = AclClient(secured.client(MIGHTY), "cluster")
    assert acls.create([described, of_group]) == {}
    wait_until(lambda: existing(poor, [topic_name]) == {topic_name: 1})

    def refusal(act: Any, *arguments: Any) -> str:
        with pytest.raises(ConfigError) as refused:
            act(poor, *arguments, deadline(30_000))
        (problem,) = refused.value.problems
        return problem

    named = f"target topic {topic_name}"
    assert refusal(ensure_topics, [TopicSpec(f"{topic_name}-new", 1, None, {})]) == (
        f"{named}-new cannot be created: TOPIC_AUTHORIZATION_FAILED: grant Create on topic {topic_name}-new"
    )
    assert refusal(add_partitions, {topic_name: 2}) == (
        f"{named} cannot be given more partitions: TOPIC_AUTHORIZATION_FAILED: grant Alter on topic {topic_name}"
    )
    assert refusal(delete_records, {key: 0}) == (
        f"{named}-0 cannot be freed of its leading fillers: TOPIC_AUTHORIZATION_FAILED: grant Delete on topic {topic_name}"
    )
    assert refusal(delete_topics, [topic_name]) == (
        f"{named} cannot be deleted: TOPIC_AUTHORIZATION_FAILED: grant Delete on topic {topic_name}"
    )
    assert set_topic_configs(poor, {topic_name: {"retention.ms": "5"}}, deadline(30_000)) == {
        topic_name: f"TOPIC_AUTHORIZATION_FAILED: grant AlterConfigs on topic {topic_name}"
    }
    assert refusal(delete_groups, [group]) == (
        f"group {group} cannot be deleted: GROUP_AUTHORIZATION_FAILED: grant Delete on group {group}"
    )
    for change in (AclClient(secured.client(POOR), "cluster").create, AclClient(secured.client(POOR), "cluster").delete):
        with pytest.raises(ConfigError, match="CLUSTER_AUTHORIZATION_FAILED: grant Alter on the cluster"):
            change([described])
    assert acls.delete([described, of_group]) == {}
    delete_topics(mighty, [topic_name], deadline(30_000))


def test_preserved_offsets_are_tried_and_the_topic_is_deleted(secured: Secured, mighty: Cluster) -> None:
    if secured.release == OLDEST:
        with pytest.raises(ConfigError, match=r"cannot preserve offsets .*: they are older than Kafka 3\.6"):
            require_preserved_offsets(mighty, "m", deadline(30_000))
    else:
        require_preserved_offsets(mighty, "m", deadline(30_000))
    wait_until(lambda: not [name for name in mighty.metadata(None, deadline()).topics if name.startswith(PROBE_PREFIX)])
