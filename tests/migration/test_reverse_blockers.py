"""Whatever would keep the reverse mirror from starting is in the way of a move: behind its point of no return it is too late."""

from __future__ import annotations

import socket
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster
from tests.migration.fake_effects import KilledError
from tests.preflight.conftest import OPEN
from tests.support import mirror_runs as runs

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import Operation
from shallow_mirror.broker.cluster import topic_presence
from shallow_mirror.checkpoints.logs.runs import RunHistory
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.migration.passage import run_of
from shallow_mirror.migration.reverse_blockers import reverse_problems
from shallow_mirror.migration.reverse_mirror import register_positions, reverse_positions
from shallow_mirror.migration.steps import Direction
from shallow_mirror.types import TopicPartition


class Move:
    """A wave with the topic `orders` from east to west, before its move."""

    def __init__(self, folder: Path, east: StrictCluster, west: StrictCluster) -> None:
        self.folder, self.east, self.west = folder, east, west
        self.settings: dict[str, Any] = {}

    def reverse(self) -> MirrorConfig:
        document = runs.document(self.west.bootstrap, self.east.bootstrap, ["orders"], tables="back", **self.settings)
        document["source"]["alias"], document["target"]["alias"] = "west", "east"
        return MirrorConfig.from_document(document, folder=self.folder)

    def topic(self, **at_east: str) -> None:
        self.east.create_topic("orders", 1, **(OPEN | at_east))
        self.west.create_topic("orders", 1, **OPEN)

    def problems(self) -> list[str]:
        with closing(Cluster(self.reverse().source.client)) as other:
            passage: Any = SimpleNamespace(
                wave=SimpleNamespace(name="all"),
                direction=Direction.MOVE,
                mirror=runs.config(self.folder, self.east.bootstrap, self.west.bootstrap, ["orders"]),
                reverse=self.reverse(),
                other=other,
                topics=lambda: ("orders",),
                target_topic=lambda topic: topic,
            )
            return list(reverse_problems(passage))


def permit_everything(body: Any) -> None:
    body.authorized_operations = set(Operation)
    for topic in body.topics:
        topic.authorized_operations = set(Operation)


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    with StrictCluster(cluster_id="east-id") as east, StrictCluster(cluster_id="west-id") as west:
        east.alter_responses("Metadata", permit_everything)
        yield Move(tmp_path, east, west)


def test_a_reverse_mirror_that_can_start_is_not_in_the_way_and_nothing_is_created_for_it(move: Move) -> None:
    move.topic()
    assert move.problems() == []
    assert list(move.folder.iterdir()) == []


def test_a_setting_of_the_old_topic_that_a_start_refuses_is_in_the_way(move: Move) -> None:
    move.topic(**{"compression.type": "lz4"})
    (problem,) = move.problems()
    assert problem.startswith("waves: all: reverse: target topic orders: has compression.type=lz4")


def test_partitions_that_only_the_copy_has_are_in_the_way(move: Move) -> None:
    move.east.create_topic("orders", 1, **OPEN)
    move.west.create_topic("orders", 2, **OPEN)
    (problem,) = move.problems()
    assert "target topic orders: has fewer partitions (1) than source topic orders (2)" in problem


@pytest.mark.parametrize("offsets", ["preserved", "continued"])
def test_offsets_that_the_reverse_file_preserves_are_in_the_way_and_never_registered(move: Move, offsets: str) -> None:
    move.topic()
    move.settings["topics"] = {"offsets": {".*": offsets}}
    expected = "orders would keep their offsets, but what comes back is appended behind the records that are there"
    assert any(expected in problem for problem in move.problems())
    with pytest.raises(ConfigError, match=expected):
        register_positions(move.reverse(), {TopicPartition("orders", 0): 3}, {})
    assert list(move.folder.iterdir()) == []


@pytest.mark.slow
def test_a_topic_that_was_deleted_since_the_point_of_no_return_gets_no_position(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_presence, "NEW_TOPIC_PATIENCE_MS", 1)
    move.topic()
    orders, gone = TopicPartition("orders", 0), TopicPartition("gone", 0)
    for _ in range(2):  # again after a crash
        assert register_positions(move.reverse(), {orders: 0, gone: 5}, {}) == {"gone"}
    assert reverse_positions(move.reverse()) == {orders: 0}


@pytest.mark.slow
def test_a_topic_that_was_created_again_since_the_point_of_no_return_gets_no_position_of_the_former_one(move: Move) -> None:
    move.topic()
    move.west.create_topic("again", 1, **OPEN)
    orders, again = TopicPartition("orders", 0), TopicPartition("again", 0)
    now = move.west.topic_ids["orders"]
    ids = {"orders": {urlsafe_b64encode(now.bytes).decode().rstrip("=")}, "again": {"of the former one"}}
    for _ in range(2):  # again after a crash
        assert register_positions(move.reverse(), {orders: 0, again: 5}, ids) == {"again"}
    assert reverse_positions(move.reverse()) == {orders: 0}


@pytest.mark.slow
def test_a_topic_that_its_broker_does_not_show_has_to_be_looked_for_again(move: Move) -> None:
    move.topic()
    register_positions(move.reverse(), {TopicPartition("orders", 0): 0}, {})

    def forbid(body: Any) -> None:
        for topic in body.topics:
            if topic.name == "hidden":
                topic.error_code = 29

    move.west.create_topic("hidden", 1, **OPEN)
    move.west.alter_responses("Metadata", forbid)
    with pytest.raises(RetriableError, match="TOPIC_AUTHORIZATION_FAILED: topic hidden of source cluster west"):
        register_positions(move.reverse(), {TopicPartition("orders", 0): 0, TopicPartition("hidden", 0): 0}, {})


@pytest.mark.slow
def test_a_registration_that_was_killed_is_no_run_of_the_mirror_for_a_conductor_on_another_host(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a process of another host is alive is not known: the conductor would not ask anybody to start the mirror."""
    move.topic()
    starts = {TopicPartition("orders", 0): 0}

    def kill(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as killed:
        killed.setattr(RunHistory, "run_ended", kill)
        killed.setattr(socket, "gethostname", lambda: "host-1")
        with pytest.raises(KilledError):
            register_positions(move.reverse(), starts, {})
    assert reverse_positions(move.reverse()) == starts
    register_positions(move.reverse(), starts, {})
    assert run_of(move.reverse(), since_registration=True) is None
    before = run_of(move.reverse())
    register_positions(move.reverse(), starts, {})
    assert run_of(move.reverse()) == before, "a mirror that runs by now is not fenced"


def test_tables_that_cannot_be_created_are_in_the_way(move: Move) -> None:
    move.topic()
    (move.folder / "back").touch()
    assert any("tables: " in problem and "cannot be created" in problem for problem in move.problems())


def test_transactional_ids_that_another_application_uses_are_in_the_way(move: Move) -> None:
    move.topic()
    move.east.create_topic("__transaction_state")
    move.east.change_always("DescribeTransactions", error(53))
    assert any("reverse: cluster east: " in problem for problem in move.problems())
