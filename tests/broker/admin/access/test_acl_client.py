"""ACLs of a cluster that has none, that refuses, or that does not answer: one sentence that names what to do."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from tests.fakes.changes import Change, dropped_after, error
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker.admin.access import (
    Acl,
    AclEffect,
    AclOperation,
    PatternKind,
    ResourceKind,
    ResourcePattern,
)
from shallow_mirror.broker.admin.access.acl_client import AclClient
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

ORDERS = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.READ)
BILLS = Acl(
    ResourcePattern(ResourceKind.TOPIC, "bills", PatternKind.PREFIXED), "User:*", AclOperation.ALL, AclEffect.DENY, "10.0.0.1"
)
CLUSTER = Acl(ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster"), "User:anna", AclOperation.IDEMPOTENT_WRITE)


def reader(fake: StrictCluster) -> AclClient:
    properties = {"bootstrap.servers": fake.bootstrap, "request.timeout.ms": 3000}
    return AclClient(ClientConfig.from_properties(properties), "source cluster east")


def writer(fake: StrictCluster) -> AclClient:
    properties = {"bootstrap.servers": fake.bootstrap, "request.timeout.ms": 2000}
    return AclClient(ClientConfig.from_properties(properties), "target cluster west")


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


def test_what_is_created_is_read_and_deleted_by_all_that_it_is(fake: StrictCluster) -> None:
    fake.acls = {}
    other = Acl(ORDERS.pattern, "User:bob", AclOperation.READ)
    assert writer(fake).create([ORDERS, BILLS, CLUSTER, other, ORDERS]) == {}
    assert writer(fake).create([ORDERS]) == {}
    assert reader(fake).read() == {ORDERS, BILLS, CLUSTER, other}
    assert fake.acls[2, "orders", 3] == [entry(3), entry(3, "User:bob")]
    assert writer(fake).delete([BILLS, ORDERS]) == {}
    assert writer(fake).delete([BILLS]) == {}
    assert reader(fake).read() == {CLUSTER, other}


def test_many_acls_are_created_in_requests_of_bounded_size(fake: StrictCluster) -> None:
    fake.acls = {}
    acls = [Acl(ResourcePattern(ResourceKind.TOPIC, f"t{index}"), "User:a", AclOperation.READ) for index in range(1001)]
    assert writer(fake).create(acls) == {}
    assert [len(body.creations) for body in fake.bodies("CreateAcls")] == [500, 500, 1]
    assert len(fake.acls) == 1001


def test_a_refusal_of_one_acl_is_returned_with_the_brokers_reason(fake: StrictCluster) -> None:
    fake.acls = {}
    nobody = Acl(ORDERS.pattern, "anna", AclOperation.READ)
    unnamed = Acl(ResourcePattern(ResourceKind.TOPIC, ""), "User:anna", AclOperation.READ)
    other = Acl(ResourcePattern(ResourceKind.CLUSTER, "west"), "User:anna", AclOperation.ALTER)
    assert writer(fake).create([nobody, BILLS, unnamed, other]) == {
        nobody: "INVALID_REQUEST: Could not parse principal from `anna`",
        unnamed: "INVALID_REQUEST: Invalid empty resource name",
        other: "INVALID_REQUEST: The only valid name for the CLUSTER resource is kafka-cluster",
    }
    assert reader(fake).read() == {BILLS}
    fake.change("DeleteAcls", error(44, ("bills", -1)))
    assert writer(fake).delete([BILLS]) == {BILLS: "POLICY_VIOLATION: by the test"}


def test_an_acl_that_matches_and_cannot_be_deleted_is_a_refusal(fake: StrictCluster) -> None:
    def refuse(response: Any) -> None:
        (matching,) = response.filter_results[0].matching_acls
        matching.error_code, matching.error_message = -1, "the log is not writable"

    fake.acls = {(2, "orders", 3): [entry(3)]}
    fake.alter_responses("DeleteAcls", refuse)
    assert writer(fake).delete([ORDERS]) == {ORDERS: "UNKNOWN_SERVER_ERROR: the log is not writable"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (error(54), ConfigError, "^target cluster west has no authorizer"),
        (
            error(31),
            ConfigError,
            "^target cluster west: (cre|del)ating ACLs: CLUSTER_AUTHORIZATION_FAILED: grant Alter on the cluster to the user",
        ),
        (error(41), RetriableError, "^NOT_CONTROLLER: target cluster west: (cre|del)ating ACLs: by the test"),
        (error(7), RetriableError, "^REQUEST_TIMED_OUT: target cluster west: (cre|del)ating ACLs"),
        (Change(drops_before=True), RetriableError, "^NETWORK_EXCEPTION: target cluster west: (cre|del)ating ACLs: 127.0.0.1"),
    ],
)
def test_a_cluster_that_refuses_all_changes_is_named_with_the_remedy(
    fake: StrictCluster, change: Change, kind: type[MirrorError], message: str
) -> None:
    fake.acls = {}
    for api in ("CreateAcls", "DeleteAcls"):
        fake.change_always(api, change)
    message = message.replace("(cre|del)ating", "(creating|deleting)")
    with pytest.raises(kind, match=message):
        writer(fake).create([ORDERS])
    with pytest.raises(kind, match=message):
        writer(fake).delete([ORDERS])


def test_changes_are_asked_of_the_controller_again_where_an_answer_is_lost() -> None:
    with StrictCluster(2) as fake:
        fake.acls, fake.controller_id = {}, 2
        for api in ("CreateAcls", "DeleteAcls"):
            fake.change(api, dropped_after())
        assert writer(fake).create([ORDERS, BILLS]) == {}
        assert writer(fake).delete([ORDERS]) == {}
        assert reader(fake).read() == {BILLS}
        asked = [request.node_id for request in fake.received if request.api in ("CreateAcls", "DeleteAcls")]
        assert asked == [2, 2, 2, 2]


def test_a_cluster_without_authorizer_takes_no_acls(fake: StrictCluster) -> None:
    with pytest.raises(ConfigError, match=r"^target cluster west has no authorizer"):
        writer(fake).create([ORDERS])
