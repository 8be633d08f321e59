"""Archives with `on_error: isolate` whose source topic was deleted and created again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.surroundings import world_of_two_topics
from tests.support import archive_runs
from tests.support.inline_streams import InlineStreams

from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable
from shallow_mirror.checkpoints.logs.runs import read_problems
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import IncompleteRunError, TopicRecreatedError
from shallow_mirror.streaming.runs import Archive

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with world_of_two_topics(tmp_path / "world") as opened:
        yield opened


def _config(world: FakeWorld, **groups: Any) -> ArchiveConfig:
    return archive_runs.config(world.folder, world.source.bootstrap, ["[a-z]"], **groups)


def _archive(world: FakeWorld, config: ArchiveConfig) -> None:
    Archive(config).run(InlineStreams(world.checkpoints, lambda: None), available_now=True)


def _positions(config: ArchiveConfig) -> dict[tuple[str, str], int]:
    positions = ArchiveTable.open(TableStorage(config.table_location)).positions()
    return {(source.topic, source.topic_id): at.offset for source, at in positions.items()}


@pytest.mark.parametrize("on_error", ["stop", "isolate"])
def test_the_topic_waits_for_the_operator_and_with_isolate_the_others_are_archived(world: FakeWorld, on_error: str) -> None:
    config = _config(world, on_error=on_error)
    _archive(world, config)
    former, other = ((topic, world.source.topic_ids()[topic]) for topic in ("a", "b"))
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    world.produce("a", 0, 2)
    world.produce("b", 0, 1)
    if on_error == "stop":
        with pytest.raises(TopicRecreatedError):
            _archive(world, config)
        assert _positions(config) == {former: 1, other: 1}
    else:
        with pytest.raises(IncompleteRunError, match="source topic a was deleted and created again"):
            _archive(world, config)
        assert _positions(config) == {former: 1, other: 2}
        storage = TableStorage(config.table_location)
        problems = read_problems(storage.best_effort_tables(), 2)
        assert {entry.problem.error_name for entry in problems} == {TopicRecreatedError.__name__, IncompleteRunError.__name__}
        described = ArchivedTopics.of(storage).latest()
        assert {(entry.topic, entry.topic_id) for entry in described.values()} == {former, other}

    continuing = _config(world, on_error=on_error, read={"on_data_loss": "continue"})
    _archive(world, continuing)
    assert _positions(continuing) == {former: 1, other: 2, ("a", world.source.topic_ids()["a"]): 2}
