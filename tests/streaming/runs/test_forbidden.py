"""A target that forbids what a mirror needs: one clear error before anything is produced, and a restart that goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import catch_up, config, create_topic, high_watermark, read_values, write

from shallow_mirror.broker import Cluster
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import SINGLE_NODE_ID
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.preflight.findings import Level
from shallow_mirror.streaming.runs.permissions import require_acls
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("micro_batch_loop")]

GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "transaction.max.timeout.ms": "60000",
}


@pytest.fixture(scope="module")
def guarded(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """One cluster that obeys ACLs; everything that no ACL is about is allowed."""
    nodes = start_clusters(tmp_path_factory.mktemp("guarded"), 1, properties=GUARDED)
    yield nodes[0]
    stop_clusters(nodes)


class Acl:
    """Allows or forbids everybody one operation on resources whose names begin with `name` while the block runs.

    Where there is any ACL about a resource, only what one of them allows is allowed.
    """

    def __init__(
        self,
        cluster: LocalKafka,
        kind: ResourceType,
        name: str,
        operation: AclOperation,
        permission: AclPermissionType = AclPermissionType.DENY,
    ) -> None:
        self._cluster = cluster
        self._pattern = (kind, name, ResourcePatternType.PREFIXED, "User:*", "*", operation, permission)

    def __enter__(self) -> None:
        client = runs.admin(self._cluster.bootstrap)
        for future in client.create_acls([AclBinding(*self._pattern)]).values():
            future.result(30)
        self._wait_until_obeyed(client, 1)

    def __exit__(self, *_: object) -> None:
        client = runs.admin(self._cluster.bootstrap)
        for future in client.delete_acls([AclBindingFilter(*self._pattern)]).values():
            assert len(future.result(30)) == 1
        self._wait_until_obeyed(client, 0)

    def _wait_until_obeyed(self, client: Any, count: int) -> None:
        """Wait for the broker's authorizer, which hears of the change a moment after the controller has written it."""
        wanted = AclBindingFilter(*self._pattern)
        runs.wait_for("the ACL", lambda: len(client.describe_acls(wanted).result(30)) == count)


def refused_at_a_start(settings: MirrorConfig) -> list[str]:
    with closing(Cluster(settings.source.client)) as source, closing(Cluster(settings.target.client)) as target:
        with pytest.raises(ConfigError) as refused:
            require_acls(settings, source, target, Deadline.after_ms(20_000, time.monotonic))
    return list(refused.value.problems)


@pytest.mark.parametrize(
    ("kind", "operation", "message"),
    [
        (
            ResourceType.TRANSACTIONAL_ID,
            AclOperation.WRITE,
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED: grant Write on transactional id {name}-0$",
        ),
        (ResourceType.GROUP, AclOperation.READ, "GROUP_AUTHORIZATION_FAILED: grant Read on group {name}-0$"),
        (ResourceType.TOPIC, AclOperation.WRITE, "TOPIC_AUTHORIZATION_FAILED: grant Write on topic {name}$"),
    ],
)
def test_a_missing_right_is_named_with_what_to_grant_and_nothing_is_visible(
    kind: ResourceType,
    operation: AclOperation,
    message: str,
    two_clusters: Any,
    guarded: LocalKafka,
    topic_name: str,
    tmp_path: Path,
    spark: Any,
) -> None:
    source, target = two_clusters.source.bootstrap, guarded.bootstrap
    topic = f"{operation.name}-{topic_name}"[:200]
    create_topic(source, topic)
    create_topic(target, topic)
    write(source, topic, ["a", "b"])
    settings = config(tmp_path, source, target, [topic], mirror=f"mirror-{kind.name}", write={"slots": 1})
    name = topic if kind is ResourceType.TOPIC else settings.mirror
    with Acl(guarded, kind, name, operation), pytest.raises(ConfigError, match=message.format(name=re.escape(name))):
        catch_up(settings, spark)
    assert read_values(target, topic) == []
    assert runs.last_stable_offset(target, topic) == high_watermark(target, topic)
    catch_up(settings, spark)
    assert read_values(target, topic) == ["a", "b"]
    if kind is ResourceType.TOPIC:
        hidden = f"^target cluster west: topic {name}: TOPIC_AUTHORIZATION_FAILED: grant Read on topic {name}$"
        with Acl(guarded, kind, name, AclOperation.DESCRIBE), pytest.raises(ConfigError, match=hidden):
            verify_mirror(settings)
        assert verify_mirror(settings).record_count == 2


def test_a_transaction_timeout_above_the_brokers_cap_is_refused_with_the_setting(
    two_clusters: Any, guarded: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, guarded.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a"])
    too_long = config(tmp_path, source, target, [topic_name], write={"transaction_timeout_ms": 60_001})
    with pytest.raises(ConfigError, match=r"write\.transaction_timeout_ms: 60001 is above transaction\.max\.timeout\.ms"):
        catch_up(too_long, spark)
    assert topic_name not in runs.topics_of(target)
    catch_up(config(tmp_path, source, target, [topic_name]), spark)
    assert read_values(target, topic_name) == ["a"]


def test_preflight_names_missing_rights_and_the_brokers_cap(
    two_clusters: Any, guarded: LocalKafka, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, guarded.bootstrap
    create_topic(source, topic_name)
    create_topic(source, f"{topic_name}-new")
    create_topic(target, topic_name)
    too_long = config(tmp_path, source, target, [f"{topic_name}.*"], write={"transaction_timeout_ms": 60_001})

    def stops() -> list[tuple[str, str]]:
        return [
            (finding.subject, finding.what.split(": ")[-1].split(" on topic ")[0])
            for finding in preflight_mirror(too_long).findings
            if finding.level is Level.STOPS
        ]

    def allowed(operation: AclOperation) -> Acl:
        return Acl(guarded, ResourceType.TOPIC, topic_name, operation, AclPermissionType.ALLOW)

    cap = (f"cluster west, broker {SINGLE_NODE_ID}", "lower it, or raise that")
    with allowed(AclOperation.READ), allowed(AclOperation.DESCRIBE_CONFIGS):
        assert stops() == [cap, (f"target topic {topic_name}", "grant Write"), (f"target topic {topic_name}-new", "grant Write")]
        assert refused_at_a_start(too_long) == [
            f"target topic {topic_name}{suffix}: TOPIC_AUTHORIZATION_FAILED: grant Write on topic {topic_name}{suffix}"
            for suffix in ("", "-new")
        ]
    with allowed(AclOperation.READ), allowed(AclOperation.WRITE):
        assert stops() == [cap, *((f"target topic {topic_name}{suffix}", "grant DescribeConfigs") for suffix in ("", "-new"))]
    with closing(GroupClient(too_long.target.client, "target")) as groups:
        assert groups.committed([topic_name]) == {topic_name: ()}, "now the cluster has a topic for groups"
    with Acl(guarded, ResourceType.GROUP, too_long.mirror, AclOperation.DESCRIBE, AclPermissionType.ALLOW):
        assert stops() == [cap, ("cluster west", f"grant Read on group {too_long.mirror}-0")]
    assert stops() == [cap]
    assert f"{topic_name}-new" not in runs.topics_of(target)
