"""Sentences about permissions that a user lacks, with the cluster, what to grant, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.fakes import changes
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker.admin import Operation
from shallow_mirror.migration.permissions import (
    TO_READ,
    TO_REHEARSE,
    UserView,
    missing_in_transactions,
    missing_on_groups,
    missing_on_topics,
    missing_to_change_acls,
    missing_to_delete,
    missing_to_list,
)


@pytest.fixture
def fake() -> Iterator[StrictCluster]:
    with StrictCluster(nodes=1) as cluster:
        cluster.create_topic("orders", 1)
        yield cluster


@pytest.fixture
def view(fake: StrictCluster) -> Iterator[UserView]:
    cluster = client_of(fake, SleepingClock())
    yield UserView(cluster, "target cluster west")
    cluster.close()


def respond(fake: StrictCluster, on_topic: Sequence[Operation], on_cluster: Sequence[Operation] = ()) -> None:
    """Let the cluster report these operations."""

    def alter(body: Any) -> None:
        body.authorized_operations = set(on_cluster)
        for topic in body.topics:
            topic.authorized_operations = set(on_topic)

    fake.alter_responses("Metadata", alter)


def test_what_is_missing_on_a_topic_is_one_sentence(fake: StrictCluster, view: UserView) -> None:
    respond(fake, [Operation.DESCRIBE])
    expected = "target cluster west: grant Read, DescribeConfigs on topic orders: to compare"
    assert list(missing_on_topics(view, ["orders"], TO_READ, "to compare")) == [expected]
    respond(fake, [])
    assert list(missing_on_topics(view, ["orders"], TO_READ, "to compare")) == [expected]
    respond(fake, TO_READ)
    assert list(missing_on_topics(view, ["orders"], TO_READ, "to compare")) == []
    assert list(missing_on_topics(view, [], TO_READ, "to compare")) == []


def test_who_may_create_on_the_cluster_may_create_every_topic(fake: StrictCluster, view: UserView) -> None:
    without_create = [operation for operation in TO_REHEARSE if operation is not Operation.CREATE]
    respond(fake, without_create)
    assert len(list(missing_on_topics(view, ["scratch"], TO_REHEARSE, "to rehearse"))) == 1
    respond(fake, without_create, [Operation.CREATE])
    assert list(missing_on_topics(view, ["scratch"], TO_REHEARSE, "to rehearse")) == []


def test_acls_are_changed_by_who_may_alter_the_cluster(fake: StrictCluster, view: UserView) -> None:
    for granted in ([], [Operation.DESCRIBE]):
        respond(fake, [], granted)
        assert list(missing_to_change_acls(view, "to deny")) == ["target cluster west: grant Alter on the cluster: to deny"]
    respond(fake, [], [Operation.ALTER])
    assert list(missing_to_change_acls(view, "to deny")) == []


def test_what_is_missing_on_groups_and_transactional_ids_is_named(fake: StrictCluster, view: UserView) -> None:
    for missing in (missing_on_groups, missing_to_list, missing_to_delete):
        assert list(missing(view, ["billing"], "needed")) == []
    assert list(missing_in_transactions(view, "m-0", "needed")) == []
    for api in ("Heartbeat", "DescribeGroups", "DeleteGroups"):
        fake.change_always(api, changes.error(30))
    fake.change_always("EndTxn", changes.error(53))
    for missing, right in ((missing_on_groups, "Read"), (missing_to_list, "Describe"), (missing_to_delete, "Delete")):
        (problem,) = missing(view, ["billing"], "needed")
        assert problem == f"target cluster west: GROUP_AUTHORIZATION_FAILED: grant {right} on group billing: needed"
    assert [problem.split(": ")[2] for problem in missing_in_transactions(view, "m-0", "needed")] == [
        "grant Write on transactional id m-0",
        "grant Read on group m-0",
    ]
    (problem,) = missing_in_transactions(view, "m-groups", "needed", with_receipts=False)
    assert "grant Write on transactional id m-groups" in problem
