"""A source topic that was deleted and created again while its mirror does not copy it: the others are copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import Life
from tests.operators.surroundings import world_of_two_topics

from shallow_mirror.errors import IncompleteRunError, TopicRecreatedError
from shallow_mirror.preflight import preflight_mirror

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with world_of_two_topics(tmp_path / "world") as opened:
        assert opened.run(Life()) is None
        yield opened


def _create_again(world: FakeWorld) -> None:
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    world.produce("a", 0, 2)
    world.produce("b", 0, 1)


def _counts(world: FakeWorld) -> dict[str, int]:
    return {topic: len(world.target.read(topic, 0)) for topic in ("a", "b")}


def test_one_that_a_migration_handed_over_does_not_stop_the_mirror_until_it_is_taken_back(world: FakeWorld) -> None:
    for action in ("hand-over", "handed-over"):
        world.controls().add(action, ["a"])
    _create_again(world)
    assert not preflight_mirror(world.config).stops()
    assert world.run(Life()) is None
    assert _counts(world) == {"a": 1, "b": 2}
    world.controls().add("take-back", ["a"])
    assert preflight_mirror(world.config).stops()
    assert isinstance(world.run(Life()), TopicRecreatedError)
    assert _counts(world) == {"a": 1, "b": 2}


def test_one_that_is_paused_is_reported_and_stops_the_mirror_once_it_is_resumed(world: FakeWorld) -> None:
    world.controls().add("pause", ["a"])
    _create_again(world)
    incomplete = world.run(Life())
    assert isinstance(incomplete, IncompleteRunError)
    assert "source topic a was deleted and created again" in str(incomplete)
    assert _counts(world) == {"a": 1, "b": 2}
    world.controls().add("resume", ["a"])
    assert isinstance(world.run(Life()), TopicRecreatedError)
    assert _counts(world) == {"a": 1, "b": 2}
