"""The same administrative requests to the fake and to a real broker: both must answer what the table says, code by code."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.kafka_codec import request_type
from tests.fakes.peers import Peer
from tests.support.record_batches import batch

_SET, _DELETE = 0, 1


def creatable(name: str, partitions: int = 1, replicas: int = -1, **configs: str) -> Any:
    topic = request_type("CreateTopics").CreatableTopic
    entries = [topic.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return topic(name=name, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=entries)


def create(peer: Peer, *topics: Any, validate_only: bool = False) -> list[tuple[str, int]]:
    response = peer.client.ask("CreateTopics", topics=list(topics), timeout_ms=20_000, validate_only=validate_only)
    return sorted((topic.name.removeprefix(peer.topic), topic.error_code) for topic in response.topics)


def grow(peer: Peer, *topics: tuple[str, int]) -> list[int]:
    topic = request_type("CreatePartitions").CreatePartitionsTopic
    wanted = [topic(name=name, count=count, assignments=None) for name, count in topics]
    response = peer.client.ask("CreatePartitions", topics=wanted, timeout_ms=20_000, validate_only=False)
    return [result.error_code for result in response.results]


def alter(peer: Peer, *changes: tuple[str, int, str | None], name: str | None = None) -> int:
    resource = request_type("IncrementalAlterConfigs").AlterConfigsResource
    configs = [resource.AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    wanted = resource(resource_type=2, resource_name=name or peer.topic, configs=configs)
    (answered,) = peer.client.ask("IncrementalAlterConfigs", resources=[wanted], validate_only=False).responses
    return int(answered.error_code)


def delete(peer: Peer, name: str | None, topic_id: uuid.UUID | None = None) -> int:
    state = request_type("DeleteTopics").DeleteTopicState
    wanted = state(name=name, topic_id=topic_id or uuid.UUID(int=0))
    (answered,) = peer.client.ask("DeleteTopics", topics=[wanted], timeout_ms=20_000).responses
    return int(answered.error_code)


def delete_records(peer: Peer, offset: int, partition: int = 0) -> tuple[int, int]:
    topic = request_type("DeleteRecords").DeleteRecordsTopic
    part = topic.DeleteRecordsPartition(partition_index=partition, offset=offset)
    response = peer.client.ask("DeleteRecords", topics=[topic(name=peer.topic, partitions=[part])], timeout_ms=20_000)
    (answered,) = response.topics[0].partitions
    return answered.error_code, answered.low_watermark


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (lambda name: creatable(name, 3, 1, retention_ms="5"), 0),
        (lambda name: creatable(name, -1, -1), 0),
        (lambda name: creatable(name, 0), 37),
        (lambda name: creatable(name, -2), 37),
        (lambda name: creatable(name, 1, 9), 38),
        (lambda name: creatable(name, 1, 0), 38),
        (lambda name: creatable(name, 1, -2), 38),
        (lambda name: creatable(name, 1, 1, cleanup_policies="compact"), 40),
        (lambda name: creatable(name, 1, 1, cleanup_policy="compacted"), 40),
        (lambda name: creatable(name, 1, 1, retention_ms="long"), 40),
        (lambda name: creatable(name + " blank"), 17),
        (lambda name: creatable(name[:1] * 250), 17),
        (lambda name: creatable(name, 10_001), 44),
    ],
)
def test_a_topic_is_created_or_refused(peer: Peer, topic: Callable[[str], Any], code: int) -> None:
    ((_, answered),) = create(peer, topic(peer.topic))
    assert answered == code


def test_a_topic_is_created_once_and_names_that_metrics_take_for_one_collide(peer: Peer) -> None:
    twice = [creatable(f"{peer.topic}.a"), creatable(f"{peer.topic}.a")]
    assert create(peer, *twice) == [(".a", 42)]
    assert create(peer, creatable(f"{peer.topic}.a"), validate_only=True) == [(".a", 0)]
    assert create(peer, creatable(f"{peer.topic}.a"), creatable(f"{peer.topic}.b", 0)) == [(".a", 0), (".b", 37)]
    assert create(peer, creatable(f"{peer.topic}.a")) == [(".a", 36)]
    assert create(peer, creatable(f"{peer.topic}_a")) == [("_a", 17)]


def test_partitions_are_added_or_refused(peer: Peer) -> None:
    peer.create(2)
    assert grow(peer, (peer.topic, 2)) == [37]
    assert grow(peer, (peer.topic, 1)) == [37]
    assert grow(peer, (peer.topic, 3), (peer.topic, 4)) == [42]
    assert grow(peer, (peer.topic, 4)) == [0]
    assert grow(peer, (f"{peer.topic}-gone", 4)) == [3]


def test_settings_are_altered_or_refused(peer: Peer) -> None:
    peer.create(**{"retention.ms": "5"})
    assert alter(peer, ("retention.ms", _SET, "6"), ("cleanup.policy", _SET, "compact")) == 0
    assert alter(peer, ("retention.ms", _DELETE, None)) == 0
    assert alter(peer, ("retention", _SET, "6")) == 40
    assert alter(peer, ("retention.ms", _SET, "long")) == 40
    assert alter(peer, ("retention.ms", _SET, None)) == 42
    assert alter(peer, ("retention.ms", _SET, "6"), ("retention.ms", _SET, "7")) == 42
    assert alter(peer, ("retention.ms", _SET, "6"), name=f"{peer.topic}-gone") == 3


def test_topics_are_deleted_by_name_or_id(peer: Peer) -> None:
    peer.create()
    topic_id = peer.client.metadata(peer.topic).topics[0].topic_id
    assert delete(peer, peer.topic, topic_id) == 42
    assert delete(peer, None) == 42
    assert delete(peer, None, uuid.uuid4()) == 100
    assert delete(peer, None, topic_id) == 0
    assert delete(peer, None, topic_id) == 100
    assert delete(peer, peer.topic) == 3


def test_records_are_deleted_or_refused(peer: Peer) -> None:
    peer.create()
    for _ in range(3):
        assert peer.produce(batch(0, 1)) == 0
    assert delete_records(peer, 2) == (0, 2)
    assert delete_records(peer, 1) == (0, 2)
    assert delete_records(peer, 4) == (1, -1)
    assert delete_records(peer, -2) == (1, -1)
    assert delete_records(peer, -1) == (0, 3)
    assert delete_records(peer, 0, partition=5) == (3, -1)


def test_records_of_compacted_topics_are_not_deleted(peer: Peer) -> None:
    peer.create(**{"cleanup.policy": "compact"})
    assert delete_records(peer, 0) == (44, -1)
    assert alter(peer, ("cleanup.policy", _SET, "compact,delete")) == 0
    deadline = time.monotonic() + 20
    while (answered := delete_records(peer, 0)) == (44, -1) and time.monotonic() < deadline:
        time.sleep(0.05)  # a broker hears of a setting behind the controller
    assert answered == (0, 0)


def test_without_an_authorizer_there_are_no_acls_to_change(peer: Peer) -> None:
    entry = {"operation": 3, "permission_type": 3}
    creation = request_type("CreateAcls").AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", host="*", **entry
    )
    assert [result.error_code for result in peer.client.ask("CreateAcls", creations=[creation]).results] == [54]
    wanted = request_type("DeleteAcls").DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter="t",
        pattern_type_filter=3,
        principal_filter="User:a",
        host_filter="*",
        **entry,
    )
    assert [result.error_code for result in peer.client.ask("DeleteAcls", filters=[wanted]).filter_results] == [54]
