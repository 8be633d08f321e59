"""A move of topics of which the operator has forgotten some: these do not move, and do not keep the others from moving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from tests.operators.lives import Life
from tests.operators.surroundings import isolating_world
from tests.operators.world import World

from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.errors import ConfigError
from shallow_mirror.migration.blockers import notes_of
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.steps import Direction
from shallow_mirror.operations.redo import RedoRequest, redo_config
from shallow_mirror.types import TopicPartition

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with isolating_world(tmp_path / "world", records=2, group="g1") as opened:
        yield opened


def _move(world: World, *topics: str) -> Passage:
    world.folder.mkdir(exist_ok=True)
    migration = {
        "migration": "m",
        "mirror": "mirror.yaml",
        "waves": [{"name": "all", "topics": list(topics), "groups": ["g1"]}],
        "tables": "migration",
    }
    mirror = {**world.document, "on_error": "isolate"}
    for name, document in (("mirror.yaml", mirror), ("migration.yaml", migration)):
        (world.folder / name).write_text(yaml.safe_dump(document), encoding="utf-8")
    files = MigrationFiles(MigrationConfig.load(world.folder / "migration.yaml"))
    return Passage(files, files.config.waves[0], Direction.MOVE)


def _problems(passage: Passage) -> list[str]:
    """Return the problems without permissions, which the clusters here do not tell."""
    return [problem for problem in passage.problems() if ": grant " not in problem]


@pytest.mark.parametrize("topics", [("[ab]",), ("b",)], ids=["the pattern matches it", "the wave does not name it"])
def test_a_forgotten_topic_does_not_move_and_is_no_obstacle(world: World, topics: tuple[str, ...]) -> None:
    world.delete_target_topic("a")
    with closing(_move(world, *topics)) as passage:
        assert _problems(passage)
    world.forget("a")
    with closing(_move(world, *topics)) as passage:
        assert _problems(passage) == []
        assert passage.topics() == ("b",)
        report = passage.move_groups(is_applied=False)
        assert report is not None
        assert {partition.topic_partition.topic for partition in report.partitions if partition.is_left} == {"b"}
        assert any("a is forgotten" in note for note in notes_of(passage)) is (topics != ("b",))


def test_a_wave_that_names_a_forgotten_topic_says_so(world: World) -> None:
    world.delete_target_topic("a")
    world.forget("a")
    with closing(_move(world, "a", "b")) as passage:
        (problem,) = _problems(passage)
    assert problem.startswith("waves: all: topics: a is forgotten")


@pytest.mark.slow
def test_a_topic_that_was_created_again_moves_like_any_other(world: World) -> None:
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    world.produce("a", 0, 2)
    world.source.commit_group("g1", "a", 0, 1)
    world.forget("a")
    with closing(_move(world, "[ab]")) as passage:
        assert any("has not registered a yet" in problem for problem in _problems(passage))
    assert world.run(Life()) is None
    with closing(_move(world, "[ab]")) as passage:
        assert _problems(passage) == []
        assert passage.topics() == ("a", "b")


def test_a_range_can_be_copied_to_the_name_of_the_target_of_a_forgotten_topic(world: World) -> None:
    world.delete_target_topic("a")
    request = RedoRequest(TopicPartition("a", 0), 0, 2, "a")
    with pytest.raises(ConfigError, match="this mirror writes source topic a to it"):
        redo_config(world.config, request)
    world.forget("a")
    assert redo_config(world.config, request).topics.include == ["a"]
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    with pytest.raises(ConfigError, match="this mirror writes source topic a to it"):
        redo_config(world.config, request)
