"""`acls.read_only` on real brokers with an authorizer: what it denies, what it leaves alone, and what `preflight` says of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from tests.migration.test_deny_and_waves import denies, write_as_anna, write_when_permitted
from tests.migration.test_read_only_target import acls_of_mirror
from tests.operators.failover_reports import SilentReports
from tests.support import mirror_runs as runs
from tests.support.guarded_clusters import (
    ANNA,
    MIRROR,
    PASSWORD,
    PASSWORD_VARIABLE,
    Guarded,
    client,
    guarded_pair,
    super_user,
)

from shallow_mirror.access.read_only import ReadOnlyPasses, ReadOnlyTopics, writable_topics
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import Operation, request_permissions
from shallow_mirror.broker.admin.access import Acl, AclClient, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles
from shallow_mirror.deadline import Deadline
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.migration import Options
from shallow_mirror.migration.failover import Step, fail_over
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(120)]

__all__ = ["guarded_pair"]

OWN = f"User:{MIRROR}"
ON_CLUSTER = ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster")


@pytest.fixture
def config(guarded_pair: Guarded, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MirrorConfig]:
    """Return a mirror that keeps its target read-only, whose user has no permission yet. Its topic is on both clusters."""
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    source, target = guarded_pair
    for node in guarded_pair:
        runs.create_topic(node.bootstrap, topic_name)
    document = {
        **runs.document(source.bootstrap, target.bootstrap, [topic_name], acls={"read_only": True}),
        "target": {"alias": "west", "client": client(target, MIRROR)},
    }
    path = tmp_path / "mirror.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    yield MirrorConfig.load(path)
    super_user(target).delete(list(super_user(target).read()))


def grant(node: LocalKafka, *acls: Acl) -> None:
    assert super_user(node).create(acls) == {}
    runs.wait_for("the ACLs", lambda: set(acls) <= super_user(node).read())


def findings(config: MirrorConfig) -> str:
    return "\n".join(finding.what for finding in preflight_mirror(config).findings)


def may_write(node: LocalKafka, user: str, topic: str) -> bool:
    with closing(Cluster(ClientConfig.from_properties(client(node, user)))) as cluster:
        permissions = request_permissions(cluster, [topic], Deadline.after_ms(20_000, time.monotonic))
    return Operation.WRITE in (permissions.topics[topic] or ())


def test_everybody_else_is_denied_while_the_mirror_copies_and_preflight_names_what_stands_against_that(
    guarded_pair: Guarded, config: MirrorConfig, topic_name: str, tmp_path: Path
) -> None:
    node, topic = guarded_pair.target, ResourcePattern(ResourceKind.TOPIC, topic_name)
    assert "acls.read_only cannot be kept: target cluster west: reading ACLs" in findings(config)
    grant(node, Acl(ON_CLUSTER, OWN, AclOperation.DESCRIBE))
    found = findings(config)
    assert "acls.read_only cannot be kept: grant Alter on the cluster" in found
    assert "no ACL names it: with allow.everyone.if.no.acl.found" in found
    everybody = Acl(topic, "User:*", AclOperation.WRITE)
    grant(node, Acl(ON_CLUSTER, OWN, AclOperation.ALTER), everybody)
    assert f"lets everybody write, and a Deny would stop the mirror as well: replace {everybody}" in findings(config)
    super_user(node).delete([everybody])
    anna = Acl(topic, f"User:{ANNA}", AclOperation.WRITE)
    grant(node, anna)
    assert f"no Allow Write names {OWN}" in findings(config)
    grant(node, Acl(topic, OWN, AclOperation.ALL))
    assert "read_only" not in findings(config)

    passes = opened(config, tmp_path / "tables of the mirror", topic_name)
    done = passes.run_pass(datetime.now(UTC))
    assert (done.created, done.problem) == (1, None)
    runs.wait_for("the end of anna's permission", lambda: not may_write(node, ANNA, topic_name))
    assert may_write(node, MIRROR, topic_name)
    assert passes.topics.open_topics([topic_name]) == 1
    runs.wait_for("anna's permission", lambda: may_write(node, ANNA, topic_name))

    # Under another name of its own the mirror would deny itself: for a moment it does.
    misnamed = opened(config, tmp_path / "tables of anna", topic_name, own=f"User:{ANNA}")
    problem = misnamed.run_pass(datetime.now(UTC)).problem or misnamed.run_pass(datetime.now(UTC)).problem
    assert problem is not None
    assert f"User:{ANNA} is not the mirror's own principal" in problem
    runs.wait_for("the mirror's permission", lambda: may_write(node, MIRROR, topic_name))
    assert may_write(node, ANNA, topic_name)


def test_a_fail_over_lets_others_write_to_a_target_that_was_read_only(
    guarded_pair: Guarded, config: MirrorConfig, topic_name: str, tmp_path: Path
) -> None:
    node, anna = guarded_pair.target, Acl(ResourcePattern(ResourceKind.TOPIC, topic_name), f"User:{ANNA}", AclOperation.WRITE)
    grant(node, anna, *acls_of_mirror(topic_name))
    write_when_permitted(node, topic_name, "the copy of a record")
    decide_first_record(config, topic_name)
    assert opened(config, Path(config.tables), topic_name).run_pass(datetime.now(UTC)).created == 1
    runs.wait_for("the end of anna's permission", lambda: write_as_anna(node, topic_name, "x") == "TOPIC_AUTHORIZATION_FAILED")

    document = {"failover": "f", "mirror": str(tmp_path / "mirror.yaml"), "tables": "failover"}
    files = FailoverFiles(FailoverConfig.from_document(document, folder=tmp_path))
    state = fail_over(files, SilentReports(), Options(), despite_source=True)
    assert (state.phase, state.done[Step.ADMIT_WRITERS]["acls"]) == ("failed over", 1)
    write_when_permitted(node, topic_name, "the first record behind the fail-over")
    assert denies(node, topic_name) == []


def decide_first_record(config: MirrorConfig, topic: str) -> None:
    """Let the map name the first record of the topic at the target as the copy of the first one at the source."""
    ids, topic_ids = [], []
    for client_config in (config.source.client, config.target.client):
        with closing(GroupClient(client_config, "cluster")) as cluster:
            ids.append(cluster.cluster_id())
            topic_ids.append(cluster.topic_ids([topic])[topic])
    owner = LedgerOwner.take_over(
        config.tables,
        name=config.mirror,
        source_cluster_id=ids[0],
        target_cluster_id=ids[1],
        run=RunIdentity(run_id="r", host="elsewhere", pid=1, started_at_ms=1),
        now_ms=lambda: int(time.time() * 1000),
    )
    owner.settle()
    owner.next_decision()
    segment = Segment(
        source=SourcePartition(topic, topic_ids[0], 0),
        source_start=0,
        source_end=1,
        kind=SegmentKind.DATA,
        target=TargetPartition(topic, topic_ids[1], 0),
        target_start=0,
        target_end=1,
        record_count=1,
        batch_count=1,
    )
    owner.decide([DecidedSegment(segment, SlotTxn(f"{config.mirror}-0", 1, 1))], highest_slot=0)
    owner.settle()


def opened(config: MirrorConfig, tables: Path, topic: str, own: str = OWN) -> ReadOnlyPasses:
    target = AclClient(config.target.client, "target cluster west")
    return ReadOnlyPasses(
        own=own,
        target=target,
        topics=ReadOnlyTopics.of(config, TableStorage(str(tables)), target),
        copied=lambda: frozenset({topic}),
        writable=lambda topics: writable_topics(config, topics),
        where="target cluster west",
    )
