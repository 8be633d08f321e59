"""Offsets of groups that are committed together in a transaction: with all of them, or none. On the strict fake and on a broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer
from tests.fakes.changes import error
from tests.fakes.coordinators import MAX_METADATA_BYTES
from tests.fakes.strict_broker import StrictCluster
from tests.support.mirror_runs import create_topic

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.errors import RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import GroupPartition, Outcome, Step
from shallow_mirror.groups.sync_plan import GroupCommits
from shallow_mirror.groups.transactional_commits import TransactionalCommits
from shallow_mirror.types import TopicPartition

MARKERS_PATIENCE_S = 30.0


class Committing:
    """A process that commits offset `to` of a partition for two groups."""

    def __init__(self, bootstrap: str, topic: str, to: int) -> None:
        config = ClientConfig.from_properties({"bootstrap.servers": bootstrap})
        self.client = TransactionalCommits(config, "target cluster west", None, f"{topic}-groups", 60_000)
        self.names, self.partition, self.to = (f"{topic}.app", f"{topic}.billing"), TopicPartition(topic, 0), to

    def look(self) -> None:
        self.client.begin_commits()
        self.client.listed()
        begun = self.client.begin_committed(self.names)
        for name in self.names:
            self.client.finish_committed(name, begun[name])

    def prepare(self) -> None:
        assert not any(self.client.commit_together({name: {self.partition: (self.to, "")} for name in self.names}).values())

    def commit(self) -> None:
        self.look()
        self.prepare()
        self.client.finish_commits()


class World:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.processes: list[Committing] = []
        self.plain = GroupClient(ClientConfig.from_properties({"bootstrap.servers": bootstrap}), "west")

    def process(self, to: int) -> Committing:
        self.processes.append(Committing(self.bootstrap, self.topic, to))
        return self.processes[-1]

    def offsets(self) -> list[int | None]:
        """Wait for markers that are still to come, and return what each group has."""
        give_up_at = time.monotonic() + MARKERS_PATIENCE_S
        while True:
            found = self.plain.committed([f"{self.topic}.app", f"{self.topic}.billing"])
            if all(offset.offset is not None for offsets in found.values() for offset in offsets):
                return [next((offset.offset for offset in offsets), None) for offsets in found.values()]
            assert time.monotonic() < give_up_at, found
            time.sleep(0.05)

    def close(self) -> None:
        for client in (self.plain, *(process.client for process in self.processes)):
            client.close()


@pytest.fixture(params=["fake", pytest.param("broker", marks=pytest.mark.brokers)])
def world(request: pytest.FixtureRequest, topic_name: str) -> Iterator[World]:
    if request.param == "broker":
        bootstrap = request.getfixturevalue("target_cluster").bootstrap
        create_topic(bootstrap, topic_name)
        with closing(World(bootstrap, topic_name)) as opened:
            yield opened
        return
    with StrictCluster() as cluster:
        cluster.create_topic(topic_name, 1)
        with closing(World(cluster.bootstrap, topic_name)) as opened:
            yield opened


def test_what_is_committed_can_be_read_at_once(world: World) -> None:
    world.process(5).commit()
    assert world.offsets() == [5, 5]
    world.process(7).commit()
    assert world.offsets() == [7, 7]


@pytest.mark.parametrize("is_prepared", [False, True], ids=["behind its look", "behind its request"])
def test_a_process_that_was_suspended_commits_nothing_behind_a_later_one(world: World, is_prepared: bool) -> None:
    suspended = world.process(3)
    suspended.look()
    if is_prepared:
        suspended.prepare()
    world.process(5).commit()
    world.plain.commit(suspended.names[0], {suspended.partition: (8, "")})
    with pytest.raises(RetriableError, match="GROUPS_CHANGED" if is_prepared else "PRODUCER_FENCED"):
        suspended.client.finish_commits() if is_prepared else suspended.prepare()
    assert world.offsets() == [8, 5]


def test_a_process_that_was_suspended_in_front_of_the_end_commits_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    suspended = world.process(3)
    suspended.look()
    suspended.prepare()
    changed = suspended.client._changed

    def suspend(names: list[str]) -> list[str]:
        found = changed(names)
        world.process(5).commit()
        return found

    monkeypatch.setattr(suspended.client, "_changed", suspend)
    with pytest.raises(RetriableError, match="was ended by another process"):
        suspended.client.finish_commits()
    assert world.offsets() == [5, 5]


def test_nothing_is_committed_where_a_group_was_reset_since_it_was_looked_at(world: World) -> None:
    process = world.process(3)
    process.look()
    world.plain.commit(process.names[1], {process.partition: (1, "")})
    process.prepare()
    with pytest.raises(RetriableError, match=rf"nothing was committed: {process.names[1]} changed meanwhile"):
        process.client.finish_commits()
    assert world.offsets() == [None, 1]
    process.commit()
    assert world.offsets() == [3, 3]


def test_a_reset_behind_the_second_look_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = world.process(3)
    process.look()
    process.prepare()
    changed = process.client._changed

    def reset(names: list[str]) -> list[str]:
        found = changed(names)
        world.plain.commit(process.names[0], {process.partition: (9, "")})
        return found

    monkeypatch.setattr(process.client, "_changed", reset)
    process.client.finish_commits()
    assert world.offsets() == [9, 3]


@pytest.mark.brokers
def test_nothing_is_committed_for_a_group_that_has_a_member_since(target_cluster: object, topic_name: str) -> None:
    bootstrap: str = target_cluster.bootstrap  # type: ignore[attr-defined]
    create_topic(bootstrap, topic_name)
    with closing(World(bootstrap, topic_name)) as world:
        process = world.process(3)
        process.look()
        process.prepare()
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": process.names[0], "enable.auto.commit": False})
        try:
            consumer.subscribe([topic_name])
            while not consumer.memberid():
                consumer.poll(0.1)
            with pytest.raises(RetriableError, match=rf"nothing was committed: {process.names[0]} changed meanwhile"):
                process.client.finish_commits()
        finally:
            consumer.close()
        assert world.offsets() == [None, None]


@pytest.fixture
def commits() -> Iterator[Callable[..., tuple[StrictCluster, GroupCommits]]]:
    with StrictCluster() as cluster:
        cluster.create_topic("orders", 2)
        config = ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap})
        with closing(TransactionalCommits(config, "target cluster west", None, "m-groups", 60_000)) as client:
            client.begin_commits()
            yield lambda: (cluster, GroupCommits(client))


def partition(group: str, number: int, metadata: str = "") -> GroupPartition:
    at = TopicPartition("orders", number)
    return GroupPartition(
        group=group,
        topic_partition=at,
        offset=5,
        metadata=metadata,
        outcome=Outcome.TRANSLATED,
        to_topic_partition=at,
        to_offset=5,
    )


def test_metadata_that_is_refused_is_left_out_in_the_same_transaction(
    commits: Callable[[], tuple[StrictCluster, GroupCommits]],
) -> None:
    cluster, plan = commits()
    steps = [partition("g", 0, "kept"), partition("g", 1, "m" * (MAX_METADATA_BYTES + 1))]
    (group,) = plan.plan_commits(steps, is_applied=True)
    assert [done.step for done in group.partitions] == [Step.COMMITTED, Step.COMMITTED]
    assert "committed without its metadata" in str(group.partitions[1].reason)
    assert {key: tuple(value) for key, value in cluster.groups.offsets.items()} == {
        ("g", ("orders", 0)): (5, "kept"),
        ("g", ("orders", 1)): (5, ""),
    }
    assert len(cluster.bodies("EndTxn")) == 1


def test_a_group_that_may_not_be_written_is_refused_and_the_others_are_committed(
    commits: Callable[[], tuple[StrictCluster, GroupCommits]],
) -> None:
    cluster, plan = commits()
    cluster.change("AddOffsetsToTxn", error(30))
    first, second = plan.plan_commits([partition("a", 0), partition("b", 0)], is_applied=True)
    assert (first.partitions[0].step, second.partitions[0].step) == (Step.REFUSED, Step.COMMITTED)
    assert "GROUP_AUTHORIZATION_FAILED: grant Describe on the groups" in str(first.partitions[0].reason)
    assert set(cluster.groups.offsets) == {("b", ("orders", 0))}


def test_without_anything_to_commit_no_transaction_is_ended(commits: Callable[[], tuple[StrictCluster, GroupCommits]]) -> None:
    cluster, plan = commits()
    assert list(plan.plan_commits([], is_applied=True)) == []
    assert cluster.bodies("EndTxn") == []
