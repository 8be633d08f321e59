"""Offsets of groups whose topics are gone: those that the operator has forgotten are no obstacle, and no new topic is mistaken."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.operators.lives import Life
from tests.operators.surroundings import isolating_world
from tests.operators.world import World

from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.groups.report import GroupPartition, Outcome
from shallow_mirror.groups.sync import GroupSyncer
from shallow_mirror.groups.sync_once import sync_groups

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with isolating_world(tmp_path / "world", records=2, group="g1") as opened:
        yield opened


def _of_topic(world: World, topic: str, *, is_reverse: bool = False) -> GroupPartition:
    report = sync_groups(world.config, is_reverse=is_reverse)
    (partition,) = (partition for partition in report.partitions if partition.topic_partition.topic == topic)
    return partition


def test_offsets_of_a_forgotten_topic_are_not_left(world: World) -> None:
    world.delete_target_topic("a")
    assert not sync_groups(world.config, is_applied=True).is_done
    world.forget("a")
    assert sync_groups(world.config, is_applied=True).is_done
    forgotten = _of_topic(world, "a")
    assert forgotten.outcome is Outcome.NOT_MIRRORED
    assert forgotten.reason is not None
    assert "forgotten" in forgotten.reason
    world.target.create_topic("a", 1)
    assert _of_topic(world, "a").outcome is Outcome.NOT_MIRRORED, "another topic that has the name by now is not the copy"
    assert ("a", 0) not in world.target.group_offsets("g1")


def test_the_sync_of_a_running_mirror_leaves_forgotten_topics_out(world: World) -> None:
    world.delete_target_topic("a")
    storage = TableStorage.to_write(world.config.table_location, world.config.tables_writer)
    syncer = GroupSyncer(world.config, storage, storage.best_effort_tables())
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert syncer.run_pass(now).left_count == 1
    world.forget("a")
    done = syncer.run_pass(now)
    assert (done.left_count, done.in_place_count, done.partition_count) == (0, 1, 1)
    syncer.close()


def test_a_topic_that_was_created_again_is_not_forgotten_with_the_former_one(world: World) -> None:
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    world.produce("a", 0, 3)
    world.source.commit_group("g1", "a", 0, 2)
    assert _of_topic(world, "a").outcome is Outcome.RECREATED
    world.forget("a")
    assert _of_topic(world, "a").outcome is Outcome.WAITS, "the next start mirrors it"
    assert world.run(Life()) is None
    translated = _of_topic(world, "a")
    assert (translated.outcome, translated.to_offset) == (Outcome.TRANSLATED, world.target.bounds("a", 0)[1] - 2)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_offsets_in_a_target_topic_that_was_created_again_lead_nowhere_at_the_source(world: World, *, is_forgotten: bool) -> None:
    world.delete_target_topic("a")
    world.target.create_topic("a", 1)
    world.target.produce("a", 0, ["another"])
    world.target.commit_group("g2", "a", 0, 1)
    if is_forgotten:
        world.forget("a")
    back = _of_topic(world, "a", is_reverse=True)
    assert back.to_offset is None
    assert back.outcome is (Outcome.NOT_MIRRORED if is_forgotten else Outcome.RECREATED)
    assert sync_groups(world.config, is_reverse=True, is_applied=True).is_done is is_forgotten
    assert ("a", 0) not in world.source.group_offsets("g2")


def test_the_command_is_told_what_each_step_waits_for(world: World) -> None:
    awaited: list[str] = []
    assert sync_groups(world.config, is_applied=True, on_wait=awaited.append).is_done
    source, target = world.config.source_cluster_name, world.config.target_cluster_name
    assert awaited == [
        f"{target} to answer",
        f"the groups of {source} and their committed offsets",
        "the rows of the offset map that these offsets lead to",
        f"commits at {target}",
    ]
