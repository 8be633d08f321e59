"""Groups without members are deleted at their coordinators; those that do not exist are passed over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.fakes.changes import dropped_after, error
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.coordinators import Committed
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster, delete_groups
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError


@pytest.fixture
def nodes() -> Iterator[StrictCluster]:
    with StrictCluster(2) as nodes:
        for group in ("app", "other", "third"):
            nodes.groups.commit_now(group, ("orders", 0), Committed(5, ""))
        yield nodes


@pytest.fixture
def cluster(nodes: StrictCluster) -> Iterator[Cluster]:
    with closing(Cluster(ClientConfig.from_properties({"bootstrap.servers": nodes.bootstrap}))) as cluster:
        yield cluster


def within(ms: float) -> Deadline:
    return Deadline.after_ms(ms, time.monotonic)


def groups(nodes: StrictCluster) -> list[str]:
    return [group for group, _ in nodes.groups.offsets]


def test_groups_are_deleted_where_their_coordinator_moves_and_an_answer_is_lost(nodes: StrictCluster, cluster: Cluster) -> None:
    delete_groups(cluster, ["app", "missing"], within(10_000))
    nodes.move_coordinator(0, 2)
    nodes.change("DeleteGroups", dropped_after(), node_id=2)
    delete_groups(cluster, ["app", "other"], within(10_000))
    assert groups(nodes) == ["third"]


def test_refusals_are_named_and_the_other_groups_deleted(nodes: StrictCluster, cluster: Cluster) -> None:
    nodes.change("DeleteGroups", error(30))
    with pytest.raises(
        ConfigError, match=r"^group app cannot be deleted: GROUP_AUTHORIZATION_FAILED: grant Delete on group app$"
    ):
        delete_groups(cluster, ["app", "other"], within(10_000))
    assert groups(nodes) == ["app", "third"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (68, "^NON_EMPTY_GROUP: group app was not deleted$"),
        (15, "^COORDINATOR_NOT_AVAILABLE: group app was not deleted: gave up DeleteGroups of app"),
    ],
)
def test_a_group_with_members_or_without_coordinator_may_be_deleted_later(nodes: StrictCluster, code: int, message: str) -> None:
    nodes.change_always("DeleteGroups", error(code))
    clock = SleepingClock()  # so that no deadline ends while an attempt is under way
    with closing(client_of(nodes, clock)) as cluster, pytest.raises(RetriableError, match=message):
        delete_groups(cluster, ["app"], clock.deadline())
