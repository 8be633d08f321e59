"""Two clusters that obey ACLs, except those who come without a login; and users that can log in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from shallow_mirror.broker.admin.access import AclClient
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener

ANNA, BOB, CARL, MIRROR = "anna", "bob", "carl", "copier"
PASSWORD = "pa55"
PASSWORD_VARIABLE = "ACLS_TEST_PASSWORD"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{user}="{PASSWORD}"' for user in (ANNA, BOB, CARL, MIRROR)
)
_GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Guarded(NamedTuple):
    source: LocalKafka
    target: LocalKafka


@pytest.fixture(scope="module")
def guarded_pair(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Start two clusters for a test file, which has to import this fixture."""
    plain = {"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": f"{_MODULE};"}
    listeners = [(Listener("PLAIN", "SASL_PLAINTEXT", plain),)] * 2
    nodes = start_clusters(tmp_path_factory.mktemp("guarded"), 2, properties=_GUARDED, listeners=listeners)
    yield Guarded(*nodes)
    stop_clusters(nodes)


def client(node: LocalKafka, user: str, password: str = f"${{env:{PASSWORD_VARIABLE}}}") -> dict[str, Any]:
    """Return the properties of a user's client. `password`: itself, or a reference, by default to PASSWORD_VARIABLE."""
    return {
        "bootstrap.servers": node.address_of("PLAIN"),
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


def super_user(node: LocalKafka) -> AclClient:
    return AclClient(ClientConfig.from_properties({"bootstrap.servers": node.bootstrap}), "cluster")
