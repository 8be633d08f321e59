"""A move of topics of which the operator has forgotten some: these do not move, and are in nobody's way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from tests.operators.lives import Life
from tests.operators.surroundings import opened_world
from tests.operators.world import World

from shallow_mirror.checkpoints.tables.storage import MirrorStorage
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.errors import ConfigError
from shallow_mirror.migration.blockers import notes_of
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.steps import Direction
from shallow_mirror.operations.forget import forget
from shallow_mirror.operations.redo import RedoRequest, redo_config
from shallow_mirror.types import TopicPartition


@pytest.fixture(autouse=True)
def _without_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield two clusters whose topics a and b a mirror with `on_error: isolate` has copied; a group has read both."""
    with opened_world(tmp_path / "world") as opened:
        opened._configs[opened.settings.key()] = opened.config.model_copy(update={"on_error": "isolate"})
        for topic in ("a", "b"):
            opened.create_source_topic(topic, 1)
            opened.produce(topic, 0, 2)
            opened.source.commit_group("g1", topic, 0, 1)
        assert opened.run(Life()) is None
        yield opened


def _forget(world: World, name: str) -> None:
    forget(world.config, MirrorStorage.to_write(world.config.table_location, world.config.tables_writer), [name], is_applied=True)


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
    _forget(world, "a")
    with closing(_move(world, *topics)) as passage:
        assert _problems(passage) == []
        assert passage.topics() == ("b",)
        report = passage.move_groups(is_applied=False)
        assert report is not None
        assert {partition.topic_partition.topic for partition in report.partitions if partition.is_left} == {"b"}
        assert any("a is forgotten" in note for note in notes_of(passage)) is (topics != ("b",))


def test_a_wave_that_names_a_forgotten_topic_says_so(world: World) -> None:
    world.delete_target_topic("a")
    _forget(world, "a")
    with closing(_move(world, "a", "b")) as passage:
        (problem,) = _problems(passage)
    assert problem.startswith("waves: all: topics: a is forgotten")


def test_a_topic_that_was_created_again_moves_like_any_other(world: World) -> None:
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    world.produce("a", 0, 2)
    world.source.commit_group("g1", "a", 0, 1)
    _forget(world, "a")
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
    _forget(world, "a")
    assert redo_config(world.config, request).topics.include == ["a"]
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    with pytest.raises(ConfigError, match="this mirror writes source topic a to it"):
        redo_config(world.config, request)
