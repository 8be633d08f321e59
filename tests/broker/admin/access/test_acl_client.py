"""ACLs of a cluster that has none, that refuses, or that does not answer: one sentence that names what to do."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclBinding, AclBindingFilter
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker.admin.access import (
    Acl,
    AclEffect,
    AclOperation,
    PatternKind,
    ResourceKind,
    ResourcePattern,
    acl_client,
)
from shallow_mirror.broker.admin.access.acl_client import AclClient
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

CLIENT = ClientConfig.from_properties({"bootstrap.servers": "127.0.0.1:1"})
ORDERS = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.READ)
BILLS = Acl(
    ResourcePattern(ResourceKind.TOPIC, "bills", PatternKind.PREFIXED), "User:*", AclOperation.ALL, AclEffect.DENY, "10.0.0.1"
)
CLUSTER = Acl(ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster"), "User:anna", AclOperation.IDEMPOTENT_WRITE)


class FakeAdmin:
    """Keeps ACLs; a broker's error for a name, or for all requests."""

    def __init__(self) -> None:
        self.bindings: set[AclBinding] = set()
        self.error: KafkaError | None = None
        self.refused: dict[str, KafkaError] = {}
        self.request_sizes: list[int] = []

    def create_acls(self, bindings: list[AclBinding], *, request_timeout: float) -> dict[AclBinding, Future[None]]:
        assert request_timeout > 0
        self.request_sizes.append(len(bindings))
        self.bindings |= {binding for binding in bindings if self.error is None and binding.name not in self.refused}
        return {binding: self._future(binding.name) for binding in bindings}

    def delete_acls(self, filters: list[AclBindingFilter], *, request_timeout: float) -> dict[AclBindingFilter, Future[Any]]:
        assert request_timeout > 0
        named = {str(wanted).partition("(")[2] for wanted in filters if wanted.name not in self.refused}
        self.bindings = {binding for binding in self.bindings if str(binding).partition("(")[2] not in named}
        return {wanted: self._future(wanted.name) for wanted in filters}

    def _future(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        error = self.refused.get(name, self.error)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(error))
        return future


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(acl_client, "AdminClient", lambda _settings: fake)
    return fake


WRITER = AclClient(CLIENT, "target cluster west")


def reader(fake: StrictCluster) -> AclClient:
    properties = {"bootstrap.servers": fake.bootstrap, "request.timeout.ms": 3000}
    return AclClient(ClientConfig.from_properties(properties), "source cluster east")


def entry(operation: int, principal: str = "User:anna", host: str = "*", permission: int = 3) -> dict[str, Any]:
    return {"principal": principal, "host": host, "operation": operation, "permission_type": permission}


def test_acls_of_every_kind_of_resource_are_read(fake: StrictCluster) -> None:
    fake.acls = {
        (2, "orders", 3): [entry(3)],
        (2, "bills", 4): [entry(2, "User:*", "10.0.0.1", 2)],
        (3, "app", 3): [entry(6)],
        (4, "kafka-cluster", 3): [entry(12)],
        (5, "tx-", 4): [entry(4)],
    }
    assert reader(fake).read() == {
        ORDERS,
        BILLS,
        CLUSTER,
        Acl(ResourcePattern(ResourceKind.GROUP, "app"), "User:anna", AclOperation.DELETE),
        Acl(ResourcePattern(ResourceKind.TRANSACTIONAL_ID, "tx-", PatternKind.PREFIXED), "User:anna", AclOperation.WRITE),
    }


def test_every_operation_has_its_code_and_one_that_is_newer_is_unknown(fake: StrictCluster) -> None:
    fake.acls = {(2, "orders", 3): [entry(code) for code in (*range(2, 13), 15)]}
    assert {acl.operation for acl in reader(fake).read()} == set(AclOperation)


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (54, ConfigError, r"^source cluster east has no authorizer \(authorizer.class.name\), so it has no ACLs$"),
        (31, ConfigError, "source cluster east: reading ACLs: CLUSTER_AUTHORIZATION_FAILED: grant Describe on the cluster to"),
        (35, ConfigError, "source cluster east: reading ACLs: the broker answered UNSUPPORTED_VERSION"),
        pytest.param(
            7, RetriableError, "REQUEST_TIMED_OUT: source cluster east: gave up reading ACLs", marks=pytest.mark.thorough
        ),
    ],
)
def test_a_cluster_that_does_not_show_its_acls_is_no_cluster_without_any(
    fake: StrictCluster, code: int, kind: type[MirrorError], message: str
) -> None:
    fake.acls = {}
    for _ in range(200):
        fake.change("DescribeAcls", error(code))
    with pytest.raises(kind, match=message):
        reader(fake).read()


def test_without_authorizer_there_are_no_acls_to_read(fake: StrictCluster) -> None:
    with pytest.raises(ConfigError, match="source cluster east has no authorizer"):
        reader(fake).read()
    assert not reader(fake).has_authorizer()
    fake.acls = {}
    assert reader(fake).has_authorizer()


@pytest.mark.thorough
def test_a_broker_that_accepts_connections_and_is_silent_is_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        client = ClientConfig.from_properties({"bootstrap.servers": servers, "request.timeout.ms": 1000})
        with pytest.raises(RetriableError, match="target cluster west: "):
            AclClient(client, "target cluster west").read()
        with pytest.raises(RetriableError, match="target cluster west: creating ACLs"):
            AclClient(client, "target cluster west").create([ORDERS])


def test_what_is_created_is_deleted_by_all_that_it_is(admin: FakeAdmin) -> None:
    other = Acl(ORDERS.pattern, "User:bob", AclOperation.READ)
    assert WRITER.create([ORDERS, BILLS, CLUSTER, other]) == {}
    assert WRITER.delete([BILLS, ORDERS]) == {}
    assert {(binding.name, binding.principal) for binding in admin.bindings} == {
        ("kafka-cluster", "User:anna"),
        ("orders", "User:bob"),
    }


def test_many_acls_are_created_in_requests_of_bounded_size(admin: FakeAdmin) -> None:
    acls = [Acl(ResourcePattern(ResourceKind.TOPIC, f"t{index}"), "User:a", AclOperation.READ) for index in range(1001)]
    assert WRITER.create(acls) == {}
    assert admin.request_sizes == [500, 500, 1]
    assert len(admin.bindings) == 1001


def test_a_refusal_of_one_acl_is_returned_with_the_brokers_reason(admin: FakeAdmin) -> None:
    admin.refused = {"orders": KafkaError(KafkaError.INVALID_REQUEST, "no such principal")}
    assert WRITER.create([ORDERS, BILLS]) == {ORDERS: "INVALID_REQUEST: no such principal"}
    assert {binding.name for binding in admin.bindings} == {"bills"}
    assert WRITER.delete([ORDERS]) == {ORDERS: "INVALID_REQUEST: no such principal"}


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (KafkaError(KafkaError.SECURITY_DISABLED), ConfigError, "^target cluster west has no authorizer"),
        (KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), ConfigError, "grant Alter on the cluster"),
        (KafkaError(KafkaError._AUTHENTICATION, "wrong password"), ConfigError, "wrong password"),
        (KafkaError(KafkaError._TRANSPORT, "gone"), RetriableError, "target cluster west: .* ACLs: gone"),
        (KafkaError(KafkaError.REQUEST_TIMED_OUT, "late"), RetriableError, "REQUEST_TIMED_OUT"),
    ],
)
def test_a_cluster_that_refuses_all_changes_is_named_with_the_remedy(
    admin: FakeAdmin, failure: KafkaError, kind: type[MirrorError], message: str
) -> None:
    admin.error = failure
    with pytest.raises(kind, match=message):
        WRITER.create([ORDERS])
    with pytest.raises(kind, match=message):
        WRITER.delete([ORDERS])
