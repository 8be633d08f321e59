from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.fakes import changes
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin.acls import (
    Operation,
    missing_delete_permissions,
    missing_describe_permissions,
    missing_group_permissions,
    request_permissions,
)


def test_rights_are_asked_without_creating_anything_and_what_is_not_said_is_none(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    def response(body: Any) -> None:
        body.authorized_operations = {Operation.CREATE, 12}
        body.topics[0].authorized_operations = {Operation.READ, Operation.DESCRIBE}
        body.topics[1].authorized_operations = set()

    fake.alter_responses("Metadata", response)
    rights = request_permissions(client, ["t", "missing"], clock.deadline())
    assert rights.cluster == frozenset({Operation.CREATE})
    assert rights.topics == {"t": {Operation.READ, Operation.DESCRIBE}, "missing": None}
    assert fake.auto_created == []


def test_no_right_at_all_on_the_cluster_is_what_who_may_not_describe_it_hears(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    def response(body: Any) -> None:
        body.authorized_operations = set()

    fake.alter_responses("Metadata", response)
    assert request_permissions(client, [], clock.deadline()).cluster is None


def test_rights_are_called_what_acls_call_them() -> None:
    assert [str(operation) for operation in (Operation.READ, Operation.DESCRIBE_CONFIGS)] == ["Read", "DescribeConfigs"]


@pytest.mark.parametrize(
    ("missing", "api", "right"),
    [
        (missing_group_permissions, "Heartbeat", "Read"),
        (missing_describe_permissions, "DescribeGroups", "Describe"),
        (missing_delete_permissions, "DeleteGroups", "Delete"),
    ],
)
def test_what_is_missing_on_groups_is_asked_of_any_broker_one_group_after_the_other(
    fake: StrictCluster, client: Cluster, clock: SleepingClock, missing: Callable[..., Sequence[str]], api: str, right: str
) -> None:
    assert missing(client, ["a", "b"], clock.deadline()) == []
    fake.change(api, changes.AS_IT_SHOULD, changes.error(30))
    assert missing(client, ["a", "b"], clock.deadline()) == [f"GROUP_AUTHORIZATION_FAILED: grant {right} on group b"]
