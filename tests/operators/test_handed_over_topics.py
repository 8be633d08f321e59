"""A topic that a migration has moved: applications write to its target, and the mirror copies the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import Life
from tests.operators.surroundings import world_of_two_topics

from shallow_mirror.broker import Cluster, ClusterMetadata
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, LogTruncatedError, MirrorError
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.streaming.runs import mirror_query

pytestmark = pytest.mark.usefixtures("without_logging")

_EITHER = pytest.mark.parametrize("offsets", ["translated", "preserved"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorld]:
    monkeypatch.setattr(mirror_query, "FOLLOW_MS", 0.0)  # tasks that read on do so by the clock of the machine
    with world_of_two_topics(tmp_path / "world") as opened:
        yield opened


def _move(world: FakeWorld, offsets: str = "translated") -> None:
    """Copy both topics, and move a: an application writes a record to its target."""
    world.settings.offsets = offsets
    assert world.run(Life()) is None
    for action in ("hand-over", "handed-over"):
        world.controls().add(action, ["a"])
    world.target.produce("a", 0, ["of an application"])


def _goes_on(world: FakeWorld) -> MirrorError | None:
    """Run the mirror, and return its error; without one it has copied a further record of b, and preflight has passed."""
    world.produce("b", 0, 1)
    before = len(world.target.read("b", 0))
    stops = preflight_mirror(world.config).stops()
    error = world.ended_by(Life(), {}, 0.0)
    assert bool(stops) is (error is not None), "the same verdict as the start of a run"
    if error is None:
        assert len(world.target.read("b", 0)) == before + 1
    return error


@_EITHER
@pytest.mark.parametrize(("name", "value"), [("compression.type", "lz4"), ("message.timestamp.type", "LogAppendTime")])
def test_settings_of_its_target_are_those_of_the_applications(world: FakeWorld, offsets: str, name: str, value: str) -> None:
    _move(world, offsets)
    world.target.set_config("a", name, value)
    assert _goes_on(world) is None
    world.controls().add("take-back", ["a"])
    if (offsets, name) != ("translated", "message.timestamp.type"):
        assert isinstance(_goes_on(world), ConfigError)


@_EITHER
def test_a_partition_that_applications_have_added_is_none_of_the_mirror(world: FakeWorld, offsets: str) -> None:
    """The mirror back adds it to the source."""
    _move(world, offsets)
    for cluster in (world.target, world.source):
        cluster.add_partitions("a", 2)
        cluster.produce("a", 1, ["of an application"])
    assert _goes_on(world) is None
    assert world.target.bounds("a", 1) == (0, 1)


@_EITHER
def test_nor_is_one_that_is_added_while_the_mirror_runs(world: FakeWorld, offsets: str) -> None:
    _move(world, offsets)

    def add() -> None:
        for cluster in (world.target, world.source):
            cluster.add_partitions("a", 2)
            cluster.produce("a", 1, ["of an application"])
        world.source.produce("b", 0, ["later"])

    world.while_idle = [add]
    assert world.ended_by(Life(), {}, 60.0) is None
    assert len(world.target.read("b", 0)) == 2
    assert {row["source_partition"] for row in world.rows if row["source_topic"] == "a"} == {0}


def test_its_target_gets_no_partition_that_the_source_has_got(world: FakeWorld) -> None:
    _move(world)
    world.source.add_partitions("a", 2)
    assert _goes_on(world) is None
    assert world.target.partitions("a") == 1
    world.controls().add("take-back", ["a"])
    assert _goes_on(world) is None
    assert world.target.partitions("a") == 2


def test_what_its_target_has_lost_does_not_stop_the_mirror(world: FakeWorld) -> None:
    _move(world)
    world.target.state.log("a", 0).truncate(0)
    assert _goes_on(world) is None


def test_no_fence_is_written_to_it_where_offsets_are_preserved_no_more(world: FakeWorld) -> None:
    _move(world, "preserved")
    world.settings.offsets = "translated"
    assert _goes_on(world) is None
    assert world.target.bounds("a", 0) == (0, 2)
    assert world.target.bounds("b", 0)[1] > 2, "the fence"


@pytest.mark.parametrize("action", ["pause", "hand-over"])
def test_a_source_log_that_was_truncated_stops_the_mirror_only_where_it_is_copied(world: FakeWorld, action: str) -> None:
    world.settings.offsets = "translated"
    assert world.run(Life()) is None
    world.controls().add(action, ["a"])  # type: ignore[arg-type]
    world.source.state.log("a", 0).truncate(0)
    assert _goes_on(world) is None
    world.controls().add("resume" if action == "pause" else "take-back", ["a"])
    assert isinstance(_goes_on(world), LogTruncatedError)


@_EITHER
def test_a_target_that_is_hidden_is_prepared_again_once_its_topic_is_taken_back(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, offsets: str
) -> None:
    """An application writes to the target of a translated topic meanwhile; a preserved one could not be continued behind that."""
    world.settings.offsets = offsets
    assert world.run(Life()) is None
    world.controls().add("hand-over", ["a"])
    hidden, ask = {"a"}, Cluster.metadata

    def metadata(cluster: Cluster, topics: Sequence[str] | None, deadline: Deadline) -> ClusterMetadata:
        answer = ask(cluster, topics, deadline)
        if cluster.config != world.config.target.client:
            return answer
        return replace(
            answer,
            topics={
                name: replace(topic, error_code=29, partitions={}) if name in hidden else topic
                for name, topic in answer.topics.items()
            },
        )

    monkeypatch.setattr(Cluster, "metadata", metadata)
    assert _goes_on(world) is None

    def take_back() -> None:
        hidden.clear()
        world.controls().add("take-back", ["a"])
        world.source.produce("a", 0, ["later"])

    world.while_idle = [take_back]
    assert world.ended_by(Life(), {}, 60.0) is None
    assert any("a: taken back, and its target topic is prepared again" in wait for wait in world.waits)
    assert "later" in world.target.read("a", 0).values()
