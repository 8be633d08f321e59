"""A broker of the source that has only just started does not know a topic for a moment, whenever it is asked."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import Life
from tests.operators.surroundings import isolating_world, world_of_two_topics
from tests.support import archive_runs
from tests.support.inline_streams import InlineStreams

from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import RetriableError
from shallow_mirror.groups.report import Group, Step
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.streaming.runs import Archive, Mirror

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.slow]


class Hidden:
    """Topic a is unknown in the answer to one Metadata request to the source."""

    def __init__(self, world: FakeWorld, number: int) -> None:
        self.requests = 0
        self._number = number
        self._ids = world.source.state.topic_ids
        self._kept: dict[str, uuid.UUID] = {}
        world.network.observe = self._observe

    def _observe(self, host: str, api: str) -> None:
        self._ids.update(self._kept)
        self._kept.clear()
        if (host, api) == ("east", "Metadata"):
            self.requests += 1
            if self.requests == self._number:
                self._kept["a"] = self._ids.pop("a")


def _config(world: FakeWorld) -> ArchiveConfig:
    return archive_runs.config(world.folder, world.source.bootstrap, ["[a-z]"])


def _archive(world: FakeWorld) -> None:
    Archive(_config(world)).run(InlineStreams(world.checkpoints, lambda: None), available_now=True)


def _mirror(world: FakeWorld) -> None:
    world.lives.current = Life()
    Mirror(world.config).run(InlineStreams(world.checkpoints, lambda: None), available_now=True)


def _mirrored_end(world: FakeWorld, topic: str) -> int:
    return max(int(row["source_end"]) for row in world.rows_in(world.config.tables) if row["source_topic"] == topic)


def _hide_in_turn(folder: Path, run: Callable[[FakeWorld], None], check: Callable[[FakeWorld], None], *, is_first: bool) -> None:
    """Check what each run has left: the answer to another request is without the topic each time."""
    for number in count(1):
        with world_of_two_topics(folder / str(number)) as world:
            if not is_first:
                run(world)
                world.produce("a", 0, 2)
            hidden = Hidden(world, number)
            run(world)
            world.network.observe = lambda *_: None
            check(world)
            if hidden.requests < number:
                return


@pytest.mark.parametrize("is_first", [True, False])
def test_an_archive_that_has_caught_up_has_all_topics_with_their_descriptions(tmp_path: Path, is_first: bool) -> None:
    def check(world: FakeWorld) -> None:
        storage = TableStorage(_config(world).table_location)
        ends = {source.topic: at.offset for source, at in ArchiveTable.open(storage).positions().items()}
        # What the first listing of a first run lacks is archived by the next run.
        assert ends in ([{"a": 1, "b": 1}, {"b": 1}] if is_first else [{"a": 3, "b": 1}])
        assert {topic.topic for topic in ArchivedTopics.of(storage).latest().values()} == ends.keys(), "no restore without it"

    _hide_in_turn(tmp_path, _archive, check, is_first=is_first)


def test_a_mirror_that_has_caught_up_has_copied_what_topics_of_its_map_hold(tmp_path: Path) -> None:
    def check(world: FakeWorld) -> None:
        assert _mirrored_end(world, "a") == 3

    _hide_in_turn(tmp_path, _mirror, check, is_first=False)


def test_a_topic_that_was_deleted_is_not_waited_for(tmp_path: Path) -> None:
    with world_of_two_topics(tmp_path) as world:
        _mirror(world)
        world.delete_source_topic("a")
        world.produce("b", 0, 2)
        began = world.clock.monotonic()
        _mirror(world)
        assert world.waits == []
        assert world.clock.monotonic() - began < 5
        assert _mirrored_end(world, "b") == 3


def test_groups_are_committed_or_the_command_has_to_be_repeated(tmp_path: Path) -> None:
    """By each request in turn."""
    for number in count(1):
        with isolating_world(tmp_path / str(number), group="readers") as world:
            hidden = Hidden(world, number)
            groups, refusal = _synced(world)
            steps = {partition.topic_partition.topic: partition.step for group in groups for partition in group.partitions}
            assert "a broker does not know topic a yet: try again" in refusal or steps == dict.fromkeys("ab", Step.COMMITTED)
            if hidden.requests < number:
                return


def _synced(world: FakeWorld) -> tuple[Sequence[Group], str]:
    try:
        return sync_groups(world.config, is_applied=True).groups, ""
    except RetriableError as refusal:
        return (), str(refusal)
