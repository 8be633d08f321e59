from __future__ import annotations

from typing import Any

from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker.admin.acls import Operation, request_permissions
from shallow_mirror.broker.cluster.cluster import Cluster


def test_rights_are_asked_without_creating_anything_and_what_is_not_said_is_none(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    def answer(body: Any) -> None:
        body.authorized_operations = {Operation.CREATE, 12}
        body.topics[0].authorized_operations = {Operation.READ, Operation.DESCRIBE}

    fake.alter_answers("Metadata", answer)
    rights = request_permissions(client, ["t", "missing"], clock.deadline())
    assert rights.cluster == frozenset({Operation.CREATE})
    assert rights.topics == {"t": {Operation.READ, Operation.DESCRIBE}, "missing": None}
    assert fake.auto_created == []


def test_no_right_at_all_on_the_cluster_is_what_who_may_not_describe_it_hears(
    fake: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    def answer(body: Any) -> None:
        body.authorized_operations = set()

    fake.alter_answers("Metadata", answer)
    assert request_permissions(client, [], clock.deadline()).cluster is None


def test_rights_are_called_what_acls_call_them() -> None:
    assert [str(operation) for operation in (Operation.READ, Operation.DESCRIBE_CONFIGS)] == ["Read", "DescribeConfigs"]
