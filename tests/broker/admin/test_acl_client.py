"""ACLs of a cluster that has none, that refuses, or that does not answer: one sentence that names what to do."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclPermissionType, ResourcePatternType, ResourceType
from confluent_kafka.admin import AclOperation as ClientOperation

from shallow_mirror.broker.admin import acl_client
from shallow_mirror.broker.admin.acl_client import AclClient
from shallow_mirror.broker.admin.acl_entries import Acl, AclEffect, AclOperation, PatternKind, ResourceKind, ResourcePattern
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

CLIENT = ClientConfig.from_properties({"bootstrap.servers": "127.0.0.1:1"})
ORDERS = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.READ)
BILLS = Acl(
    ResourcePattern(ResourceKind.TOPIC, "bills", PatternKind.PREFIXED), "User:*", AclOperation.ALL, AclEffect.DENY, "10.0.0.1"
)
CLUSTER = Acl(ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster"), "User:anna", AclOperation.IDEMPOTENT_WRITE)


class FakeAdmin:
    """Keeps ACLs; a broker's error for a name, or for all requests."""

    def __init__(self, *bindings: AclBinding) -> None:
        self.bindings = set(bindings)
        self.error: KafkaError | None = None
        self.refused: dict[str, KafkaError] = {}
        self.request_sizes: list[int] = []

    def describe_acls(self, wanted: AclBindingFilter, *, request_timeout: float) -> Future[list[AclBinding]]:
        assert request_timeout > 0
        return self._future([binding for binding in self.bindings if binding.restype is wanted.restype])

    def create_acls(self, bindings: list[AclBinding], *, request_timeout: float) -> dict[AclBinding, Future[None]]:
        self.request_sizes.append(len(bindings))
        self.bindings |= {binding for binding in bindings if self.error is None and binding.name not in self.refused}
        return {binding: self._future(None, binding.name) for binding in bindings}

    def delete_acls(self, filters: list[AclBindingFilter], *, request_timeout: float) -> dict[AclBindingFilter, Future[Any]]:
        self.bindings = {binding for binding in self.bindings if binding not in filters or binding.name in self.refused}
        return {wanted: self._future([], wanted.name) for wanted in filters}

    def _future(self, value: Any, name: str = "") -> Future[Any]:
        future: Future[Any] = Future()
        error = self.refused.get(name, self.error)
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(KafkaException(error))
        return future


def client_of(monkeypatch: pytest.MonkeyPatch, admin: FakeAdmin) -> AclClient:
    monkeypatch.setattr(acl_client, "AdminClient", lambda _settings: admin)
    return AclClient(CLIENT, "target cluster west")


def test_what_is_created_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(monkeypatch, FakeAdmin())
    assert client.create([ORDERS, BILLS, CLUSTER]) == {}
    assert client.read() == {ORDERS, BILLS, CLUSTER}
    assert client.delete([BILLS]) == {}
    assert client.read() == {ORDERS, CLUSTER}


def test_every_operation_has_its_counterpart(monkeypatch: pytest.MonkeyPatch) -> None:
    acls = {Acl(ORDERS.pattern, "User:anna", operation) for operation in AclOperation}
    client = client_of(monkeypatch, FakeAdmin())
    client.create(sorted(acls))
    assert client.read() == acls


def test_an_operation_that_is_newer_than_the_client_is_read_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", ClientOperation.UNKNOWN, AclPermissionType.ALLOW
    )
    (acl,) = client_of(monkeypatch, FakeAdmin(binding)).read()
    assert acl.operation is AclOperation.UNKNOWN


def test_many_acls_are_created_in_requests_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin()
    acls = [Acl(ResourcePattern(ResourceKind.TOPIC, f"t{index}"), "User:a", AclOperation.READ) for index in range(1001)]
    assert client_of(monkeypatch, admin).create(acls) == {}
    assert admin.request_sizes == [500, 500, 1]
    assert len(admin.bindings) == 1001


def test_a_refusal_of_one_acl_is_returned_with_the_brokers_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin()
    admin.refused = {"orders": KafkaError(KafkaError.INVALID_REQUEST, "no such principal")}
    client = client_of(monkeypatch, admin)
    assert client.create([ORDERS, BILLS]) == {ORDERS: "INVALID_REQUEST: no such principal"}
    assert client.read() == {BILLS}
    assert client.delete([ORDERS]) == {ORDERS: "INVALID_REQUEST: no such principal"}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            KafkaError(KafkaError.SECURITY_DISABLED),
            ConfigError,
            r"^target cluster west has no authorizer \(authorizer.class.name\), so it has no ACLs$",
        ),
        (KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), ConfigError, "grant {right} on the cluster"),
        (KafkaError(KafkaError._AUTHENTICATION, "wrong password"), ConfigError, "wrong password"),
        (KafkaError(KafkaError._TRANSPORT, "gone"), RetriableError, "target cluster west: .* ACLs: gone"),
        (KafkaError(KafkaError.REQUEST_TIMED_OUT, "late"), RetriableError, "REQUEST_TIMED_OUT"),
    ],
)
def test_an_error_of_the_whole_cluster_names_it_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError, kind: type[MirrorError], message: str
) -> None:
    admin = FakeAdmin()
    admin.error = error
    client = client_of(monkeypatch, admin)
    with pytest.raises(kind, match=message.format(right="Describe")):
        client.read()
    with pytest.raises(kind, match=message.format(right="Alter")):
        client.create([ORDERS])
    with pytest.raises(kind, match=message.format(right="Alter")):
        client.delete([ORDERS])


def test_any_other_error_of_reading_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = FakeAdmin()
    admin.error = KafkaError(KafkaError.UNSUPPORTED_VERSION, "too old")
    with pytest.raises(ConfigError, match="target cluster west: reading ACLs: UNSUPPORTED_VERSION: too old"):
        client_of(monkeypatch, admin).read()


def test_a_broker_that_accepts_connections_and_is_silent_is_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        client = ClientConfig.from_properties({"bootstrap.servers": servers, "request.timeout.ms": 1000})
        with pytest.raises(RetriableError, match="target cluster west: reading ACLs"):
            AclClient(client, "target cluster west").read()
