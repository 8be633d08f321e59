"""`redo` once more, after a topic of its copy was deleted or created again: what was copied before is not called the copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import KilledError, Life
from tests.operators.surroundings import opened_world

from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.redo import RedoRequest, RedoResult, mirrored_clusters, redo, redo_config
from shallow_mirror.types import TopicPartition

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with opened_world(tmp_path / "world") as opened:
        opened.create_source_topic("a", 1)
        for _ in range(4):
            opened.produce("a", 0, 5)
        assert opened.run(Life()) is None
        yield opened


def copy(world: FakeWorld, target_topic: str = "again", *, rounds: int | None = None) -> RedoResult:
    """Copy the topic, in several rounds. Raises KilledError behind so many of them."""
    results, begun = list[RedoResult](), 0

    def observe(point: str) -> None:
        nonlocal begun
        begun += point == "RunSlots"
        if rounds is not None and begun > rounds:
            raise KilledError

    def perform() -> None:
        request = RedoRequest(TopicPartition("a", 0), 0, 20, target_topic)
        config = redo_config(world.config, request)
        small = config.model_copy(update={"write": config.write.model_copy(update={"slot_bytes": 1})})
        results.append(redo(small, request, clusters=mirrored_clusters(world.config), observer=observe))

    world.command(Life(), perform)
    return results[0]


def begin(world: FakeWorld, *, is_done: bool) -> None:
    if is_done:
        assert copy(world).record_count == 20
        assert copy(world).was_done
        return
    with pytest.raises(KilledError):
        copy(world, rounds=2)
    assert world.target.bounds("again", 0)[1]


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("is_there", [False, True], ids=["deleted", "created again"])
def test_what_was_copied_to_a_topic_that_is_gone_is_copied_to_another_one(
    world: FakeWorld, *, is_there: bool, is_done: bool
) -> None:
    begin(world, is_done=is_done)
    world.target.delete_topic("again")
    if is_there:
        world.target.create_topic("again", 1)
    with pytest.raises(ConfigError) as refusal:
        copy(world)
    assert str(refusal.value) == (
        f"target topic again was deleted{' and created again' * is_there} since, with what was copied of a-0 to it: "
        "give the name of another topic (--to)"
    )
    assert copy(world, "another").record_count == 20
    assert list(world.target.read("another", 0).values()) == list(world.source.read("a", 0).values())


@pytest.mark.parametrize("is_done", [True, False])
def test_what_was_copied_of_a_former_source_topic_is_not_called_a_copy_of_the_new_one(world: FakeWorld, *, is_done: bool) -> None:
    begin(world, is_done=is_done)
    former_id = world.source.topic_ids()["a"]
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    for _ in range(4):
        world.produce("a", 0, 5)
    with pytest.raises(ConfigError) as refusal:
        copy(world)
    assert str(refusal.value) == (
        f"source topic a was deleted and created again (topic id {former_id} became {world.source.topic_ids()['a']}), and what "
        "was copied to again is of the former one: give the name of another topic (--to)"
    )
    assert copy(world, "another").record_count == 20
    assert list(world.target.read("another", 0).values()) == list(world.source.read("a", 0).values())


def test_a_finished_copy_of_a_source_topic_that_was_deleted_is_still_one(world: FakeWorld) -> None:
    begin(world, is_done=True)
    world.delete_source_topic("a")
    assert copy(world).was_done


@pytest.mark.parametrize("side", ["source", "target"])
def test_nothing_is_copied_between_other_clusters_than_the_mirror_copies_between(world: FakeWorld, side: str) -> None:
    cluster = getattr(world, side).state
    right, cluster.cluster_id = cluster.cluster_id, "another-cluster"
    with pytest.raises(ConfigError, match=rf"the {side} is another cluster \(id another-cluster\) than that of the mirror"):
        copy(world)
    assert "again" not in world.target.topic_ids()
    cluster.cluster_id = right
    assert copy(world).record_count == 20
