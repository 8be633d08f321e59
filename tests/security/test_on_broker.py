"""Every security protocol on a real broker: what lets a client in, and the sentence when it stays outside."""

from __future__ import annotations

import time
from typing import Any

import pytest
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
    print(problem)
    return problem


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "SCRAM", "SHORT", "PLAIN", "OAUTH"])
def test_a_client_with_the_right_properties_is_let_in(secured: SecuredCluster, listener: str, topic_name: str) -> None:
    properties = secured.properties(listener)
    assert cluster_id(properties) == secured.node.cluster_id
    ensure_topics(client(properties), [TopicSpec(topic_name, 1, None, {})], timeout_s=30)


@pytest.mark.parametrize(
    ("listener", "changes", "said"),
    [
        ("SCRAM", {"sasl.password": "wrong"}, "refused user mirror,=user (SCRAM-SHA-512)"),
        ("SCRAM", {"sasl.username": "nobody"}, "refused user nobody (SCRAM-SHA-512)"),
        ("PLAIN", {"sasl.password": "wrong"}, "correct sasl.username and sasl.password"),
        ("PLAIN", {"sasl.mechanism": "SCRAM-SHA-256"}, "does not offer SCRAM-SHA-256 at this listener; it offers PLAIN"),
        ("SCRAM", {"sasl.mechanism": "PLAIN"}, "it offers SCRAM-SHA-256, SCRAM-SHA-512"),
        ("TLS", {"ssl.ca.location": "{stranger.identity.certificate_file}"}, "set ssl.ca.location"),
        ("TLS", {"ssl.ca.location": None}, "a CA that is not trusted here"),
        ("EXPIRED", {}, "has expired: renew it on the broker"),
        ("ELSEWHERE", {}, "is for other hosts"),
        ("MUTUAL", {"ssl.certificate.location": None, "ssl.key.location": None}, "asks for"),
        (
            "MUTUAL",
            {"ssl.certificate.location": "{strange_client.certificate_file}", "ssl.key.location": "{strange_client.key_file}"},
            "refused our client certificate",
        ),
        (
            "MUTUAL",
            {"ssl.certificate.location": "{expired_client.certificate_file}", "ssl.key.location": "{expired_client.key_file}"},
            "refused our client certificate",
        ),
        ("OAUTH", {"sasl.oauthbearer.client.secret": "wrong"}, "gave no token (401 invalid_client)"),
        ("OAUTH", {"sasl.oauthbearer.token.endpoint.url": "{tokens.url}/nowhere"}, "gave no token (404"),
    ],
)
def test_who_does_not_fit_is_told_what_to_change(
    secured: SecuredCluster, listener: str, changes: dict[str, Any], said: str
) -> None:
    filled = {name: value if value is None else value.format(**vars(secured)) for name, value in changes.items()}
    problem = refusal(secured.properties(listener, **filled))
    assert said in problem
    assert "wrong" not in problem


@pytest.mark.parametrize(
    ("listener", "protocol", "said"),
    [
        ("PLAINTEXT", "ssl", "speaks neither TLS nor SASL at this port"),
        ("PLAINTEXT", "sasl_plaintext", "asks for no SASL at this listener: set security.protocol: plaintext"),
        ("PLAINTEXT", "sasl_ssl", "set security.protocol: plaintext"),
        ("TLS", "plaintext", "speaks TLS without SASL at this port, not plaintext: set security.protocol: ssl"),
        ("TLS", "sasl_plaintext", "set security.protocol: ssl"),
        ("TLS", "sasl_ssl", "asks for no SASL at this listener: set security.protocol: ssl"),
        ("MUTUAL", "plaintext", "speaks TLS at this port, not plaintext: set security.protocol: ssl"),
        ("SCRAM", "plaintext", "speaks TLS and SASL at this port"),
        ("SCRAM", "ssl", "speaks TLS and SASL at this port, not ssl: set security.protocol: sasl_ssl"),
        ("SCRAM", "sasl_plaintext", "set security.protocol: sasl_ssl"),
        ("PLAIN", "plaintext", "speaks SASL without TLS at this port, not plaintext"),
        ("PLAIN", "ssl", "set security.protocol: sasl_plaintext"),
        ("PLAIN", "sasl_ssl", "set security.protocol: sasl_plaintext"),
    ],
)
def test_a_listener_of_another_protocol_is_named(secured: SecuredCluster, listener: str, protocol: str, said: str) -> None:
    properties = {
        "bootstrap.servers": secured.bootstrap if listener == "PLAINTEXT" else secured.address_of(listener),
        "security.protocol": protocol,
    }
    if protocol.endswith("ssl"):
        properties["ssl.ca.location"] = str(secured.authority.identity.certificate_file)
    if protocol.startswith("sasl"):
        properties |= {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    assert said in refusal(properties)
