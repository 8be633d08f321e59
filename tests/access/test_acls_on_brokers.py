"""`acls` between real brokers with an authorizer, which is asked what users may do on either side."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs
from tests.support.console_entry import console
from tests.support.guarded_clusters import (
    ANNA,
    BOB,
    CARL,
    MIRROR,
    PASSWORD,
    PASSWORD_VARIABLE,
    Guarded,
    client,
    guarded_pair,
    super_user,
)

from shallow_mirror.access.acls import AclCopy, AclReport, acl_stores
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin.access import (
    Acl,
    AclClient,
    AclEffect,
    AclOperation,
    PatternKind,
    Quota,
    QuotaClient,
    QuotaEntity,
    ResourceKind,
    ResourcePattern,
)
from shallow_mirror.broker.admin.acls import Operation, request_permissions
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.status import gather_status

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(300)]

TOPICS = ("orders", "orders-eu", "bills")

__all__ = ["guarded_pair"]


@pytest.fixture(scope="module")
def guarded(guarded_pair: Guarded) -> Guarded:
    """Return two clusters with topics."""
    for name in TOPICS:
        runs.create_topic(guarded_pair.source.bootstrap, name)
        runs.create_topic(guarded_pair.target.bootstrap, f"east.{name}")
    return guarded_pair


def copy_acls(config: MirrorConfig, *, is_applied: bool = False, is_deleting: bool = False) -> AclReport:
    copy = AclCopy(config, *acl_stores(config), is_deleting=is_deleting)
    return copy.apply(copy.compare()) if is_applied else copy.compare()


def topic(name: str, match: PatternKind = PatternKind.LITERAL) -> ResourcePattern:
    return ResourcePattern(ResourceKind.TOPIC, name, match)


def permitted(node: LocalKafka, user: str, name: str) -> frozenset[Operation]:
    """Return what the broker's authorizer allows; without Describe it says nothing, which is nothing to a reader."""
    with closing(Cluster(ClientConfig.from_properties(client(node, user)))) as cluster:
        permissions = request_permissions(cluster, [name], Deadline.after_ms(20_000, time.monotonic))
    return permissions.topics[name] or frozenset()


def quotas(node: LocalKafka) -> QuotaClient:
    return QuotaClient(ClientConfig.from_properties({"bootstrap.servers": node.bootstrap}), "cluster")


SOURCE_ACLS = (
    Acl(topic("orders", PatternKind.PREFIXED), f"User:{ANNA}", AclOperation.READ),
    Acl(topic("orders-eu"), f"User:{ANNA}", AclOperation.READ, AclEffect.DENY),
    Acl(topic("orders"), "User:*", AclOperation.ALL),
    Acl(topic("*"), f"User:{BOB}", AclOperation.READ, AclEffect.DENY),
    Acl(topic("bills"), f"User:{CARL}", AclOperation.READ),
    Acl(ResourcePattern(ResourceKind.GROUP, "billing"), f"User:{CARL}", AclOperation.READ),
)


def test_users_may_read_on_the_target_what_they_may_read_at_the_source_and_no_more(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    source, target = guarded
    conf = runs.conf_file(
        tmp_path,
        source.bootstrap,
        target.bootstrap,
        ["orders.*"],
        topics={"target_name": "{source}.{topic}"},
        acls={"principals": {f"User:{CARL}": f"User:{CARL}"}},
    )
    assert super_user(source).create(SOURCE_ACLS) == {}
    runs.wait_for("the ACLs of the source", lambda: super_user(source).read() == set(SOURCE_ACLS))
    assert console("acls", str(conf)).code == 1
    assert super_user(target).read() == frozenset()

    assert console("acls", str(conf), "--apply").code == 0
    expected = {
        Acl(topic("east.orders", PatternKind.PREFIXED), f"User:{ANNA}", AclOperation.READ),
        Acl(topic("east.orders-eu"), f"User:{ANNA}", AclOperation.READ, AclEffect.DENY),
        Acl(topic("east.orders"), f"User:{BOB}", AclOperation.READ, AclEffect.DENY),
        *(
            Acl(topic("east.orders"), "User:*", operation)
            for operation in (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
        ),
        Acl(ResourcePattern(ResourceKind.GROUP, "billing"), f"User:{CARL}", AclOperation.READ),
    }
    runs.wait_for("the ACLs of the target", lambda: super_user(target).read() == expected)
    assert console("acls", str(conf), "--apply").code == 0
    assert super_user(target).read() == expected

    for user in (ANNA, BOB, CARL):
        for name in TOPICS:
            assert permitted(target, user, f"east.{name}") <= permitted(source, user, name)
    assert Operation.READ in permitted(target, ANNA, "east.orders")
    assert Operation.READ not in permitted(target, ANNA, "east.orders-eu")
    assert Operation.WRITE in permitted(source, CARL, "orders")
    assert permitted(target, CARL, "east.orders") == {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    assert permitted(target, BOB, "east.orders") == {Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}


def test_a_running_mirror_follows_acls_and_quotas_of_the_source(guarded: Guarded, tmp_path: Path, spark: Any) -> None:
    source, target = guarded
    followed = {"sync": "500 ms", "principals": {f"User:{CARL}": "User:carl2"}}
    settings = runs.config(tmp_path, source.bootstrap, target.bootstrap, ["followed"], acls=followed, quotas={"sync": "500 ms"})
    runs.create_topic(source.bootstrap, "followed")
    runs.write(source.bootstrap, "followed", ["a", "b"])
    copied = Acl(topic("followed"), "User:carl2", AclOperation.READ)
    with runs.Running(settings, spark) as running:
        runs.wait_for(
            "the records",
            lambda: "followed" in runs.topics_of(target.bootstrap) and len(runs.read_values(target.bootstrap, "followed")) == 2,
        )
        assert super_user(source).create([replace(copied, principal=f"User:{CARL}")]) == {}
        runs.wait_for("the ACL of the target", lambda: copied in super_user(target).read())
        limit = Quota(QuotaEntity.of({"user": CARL}), "consumer_byte_rate", 1e6)
        assert quotas(source).set([limit]) == {}
        there = Quota(QuotaEntity.of({"user": "carl2"}), "consumer_byte_rate", 1e6)
        runs.wait_for("the quota of the target", lambda: there in quotas(target).read())
        runs.wait_for("status", lambda: (acls := gather_status(settings).acls) is not None and acls.is_compared)
        assert running.error is None
        runs.wait_for("status", lambda: (done := gather_status(settings).quotas) is not None and done.is_compared)
    assert gather_status(settings).problems == ()


def test_missing_permissions_on_the_clusters_are_named(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    source, target = guarded
    mirror = f"User:{MIRROR}"
    on_cluster = ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster")
    document = {
        **runs.document(source.bootstrap, target.bootstrap, ["orders"]),
        "source": {"alias": "east", "client": client(source, MIRROR)},
        "target": {"alias": "west", "client": client(target, MIRROR)},
    }
    config = MirrorConfig.from_document(document, folder=tmp_path)
    reading = Acl(on_cluster, mirror, AclOperation.DESCRIBE)
    wanted = Acl(topic("orders"), f"User:{CARL}", AclOperation.READ)
    with pytest.raises(ConfigError, match=r"source cluster east: reading ACLs: .* grant Describe on the cluster"):
        copy_acls(config)
    assert super_user(source).create([reading, wanted]) == {}
    runs.wait_for("the ACLs of the source", lambda: reading in super_user(source).read())
    with pytest.raises(ConfigError, match=r"target cluster west: reading ACLs: .* grant Describe on the cluster"):
        copy_acls(config)
    assert super_user(target).create([reading]) == {}
    runs.wait_for("the ACL of the target", lambda: reading in super_user(target).read())
    assert wanted in copy_acls(config).plan.to_create
    with pytest.raises(ConfigError, match=r"target cluster west: creating ACLs: .* grant Alter on the cluster"):
        copy_acls(config, is_applied=True)
    with pytest.raises(ConfigError, match=r"cluster: deleting ACLs: .* grant Alter on the cluster"):
        AclClient(config.target.client, "cluster").delete([reading])
    altering = Acl(on_cluster, mirror, AclOperation.ALTER)
    assert super_user(target).create([altering]) == {}
    runs.wait_for("the ACL of the target", lambda: altering in super_user(target).read())
    assert wanted in copy_acls(config, is_applied=True).created
    stale = Acl(topic("orders"), f"User:{CARL}", AclOperation.DESCRIBE_CONFIGS)
    assert super_user(target).create([stale]) == {}
    runs.wait_for("the stale ACL", lambda: {stale, wanted} <= super_user(target).read())
    assert copy_acls(config, is_applied=True, is_deleting=True).deleted == (stale,)
    runs.wait_for("the end of the stale ACL", lambda: stale not in super_user(target).read())
    assert wanted in super_user(target).read()


def test_a_cluster_without_authorizer_is_one_sentence(guarded: Guarded, tmp_path: Path, no_child_process_is_left: None) -> None:
    nodes = start_clusters(tmp_path / "open", 1)
    try:
        document = runs.document(guarded.source.bootstrap, nodes[0].bootstrap, ["orders"])
        with pytest.raises(ConfigError, match=r"^target cluster west has no authorizer"):
            copy_acls(MirrorConfig.from_document(document, folder=tmp_path))
    finally:
        stop_clusters(nodes)
