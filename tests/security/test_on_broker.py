"""Every security protocol on a real broker: what lets a client in, and the sentence when it stays outside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.security import secured_cluster as users
from tests.security.secured_cluster import SecuredCluster

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.topics import TopicSpec, ensure_topics
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError

pytestmark = pytest.mark.brokers


def deadline(ms: float = 10_000) -> Deadline:
    return Deadline.after_ms(ms, time.monotonic)


def client(properties: dict[str, Any]) -> ClientConfig:
    return ClientConfig.from_properties(properties, allows_literal_secrets=True)


def cluster_id(properties: dict[str, Any]) -> str:
    cluster = Cluster(client(properties))
    try:
        return cluster.cluster_id(deadline())
    finally:
        cluster.close()


def refusal(properties: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        cluster_id(properties)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "SCRAM", "SHORT", "PLAIN", "OAUTH"])
def test_a_client_with_the_right_properties_is_let_in(secured: SecuredCluster, listener: str, topic_name: str) -> None:
    properties = secured.properties(listener)
    assert cluster_id(properties) == secured.node.cluster_id
    ensure_topics(client(properties), [TopicSpec(topic_name, 1, None, {})], timeout_s=30)
