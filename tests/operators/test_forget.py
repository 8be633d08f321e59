"""`forget`: topics that are gone are closed by topic id, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.operators.lives import Life
from tests.operators.surroundings import isolating_world
from tests.operators.world import World

from shallow_mirror import cli, streaming
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.logs.runs import ProblemKind
from shallow_mirror.checkpoints.logs.topics import TopicIncarnation
from shallow_mirror.checkpoints.tables import TableLocation, TableStorage, storage
from shallow_mirror.checkpoints.tables.table_protocol import TableBackend
from shallow_mirror.errors import ConfigError, IncompleteRunError
from shallow_mirror.operations.forget import GoneTopic, forget
from shallow_mirror.operations.status import gather_status
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.streaming.watch.run_reporter import RunReporter
from shallow_mirror.types import SourcePartition
from shallow_mirror.verify import verify_mirror

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with isolating_world(tmp_path / "world") as opened:
        yield opened


def _forget(world: World, *names: str, is_applied: bool = True) -> list[GoneTopic]:
    storage = TableStorage.to_write(world.config.table_location, world.config.tables_writer)
    return forget(world.config, storage, names, is_applied=is_applied)


def _values(world: World, topic: str) -> list[str]:
    return list(world.target.read(topic, 0).values())


@pytest.mark.slow
def test_after_a_target_topic_was_deleted_the_mirror_is_clean_once_it_is_forgotten(world: World) -> None:
    former = TopicIncarnation("a", world.source.topic_ids()["a"])
    world.controls().add("pause", ["a"])
    world.controls().add("resume", ["a"])
    world.delete_target_topic("a")
    world.produce("a", 0, 1)
    world.produce("b", 0, 1)
    assert isinstance(world.run(Life()), IncompleteRunError)
    problems = [entry.problem for entry in gather_status(world.config).problems]
    assert {problem.topic for problem in problems if problem.kind is ProblemKind.LEFT_OUT} == {"a"}

    (gone,) = _forget(world, "a", is_applied=False)
    assert gone.topic == former
    assert "its target topic a was deleted" in gone.reason
    assert not world.controls().read().forgotten.at_ms, "without --apply nothing is written"
    assert isinstance(world.run(Life()), IncompleteRunError)

    _forget(world, "a")
    report = gather_status(world.config)
    assert {entry.source.topic for entry in report.partitions} == {"b"}
    assert not any("(for a)" in entry.problem.text for entry in report.problems)
    assert world.run(Life()) is None
    assert "a" not in world.target.topic_ids(), "it is not copied to a new topic"
    assert len(_values(world, "b")) == 2
    world.target.create_topic("a", 1)
    assert world.run(Life()) is None
    assert not _values(world, "a"), "nothing is written to a topic that has the name by now"
    verified = verify_mirror(world.config)
    assert verified.is_equal
    assert verified.closed == (f"topic a (id {former.topic_id})",)
    with pytest.raises(ConfigError, match="a: is forgotten already"):
        _forget(world, "a")


@pytest.mark.slow
def test_a_source_topic_that_was_created_again_is_mirrored_once_the_former_is_forgotten(world: World) -> None:
    world.delete_source_topic("a")
    world.create_source_topic("a", 1)
    world.produce("a", 0, 2)
    assert "source topic a was deleted" in str(_incomplete(world))
    report = preflight_mirror(world.config)
    assert not report.stops(), "with on_error: isolate a run leaves the topic out"
    assert [finding.subject for finding in report.findings if "`run` leaves it out" in finding.what] == ["source topic a"]
    assert len(_values(world, "a")) == 1
    assert any(
        "source topic a was deleted" in entry.problem.text and entry.problem.topic == "a"
        for entry in gather_status(world.config).problems
    )
    (gone,) = _forget(world, "a")
    assert not any("source topic a" in entry.problem.text for entry in gather_status(world.config).problems)
    assert "was deleted and created again" in gone.reason
    assert any("the next start mirrors it from its start" in kept for kept in gone.keeps)
    assert not preflight_mirror(world.config).stops(), "the same verdict as the start of a run"
    assert world.run(Life()) is None
    assert len(_values(world, "a")) == 3, "behind what the target topic holds"
    assert {entry.source.topic_id for entry in gather_status(world.config).partitions} == set(world.source.topic_ids().values())
    with pytest.raises(ConfigError, match="a: the source and the target still have it"):
        _forget(world, "a")


def _incomplete(world: World) -> IncompleteRunError:
    error = world.run(Life())
    assert isinstance(error, IncompleteRunError)
    return error


def test_lag_is_not_counted_of_a_forgotten_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records at the source stay there, and nothing copies them."""
    counted: list[set[str]] = []

    def note(_reporter: RunReporter, positions: Mapping[SourcePartition, Position]) -> None:
        counted.append({source.topic for source in positions})

    monkeypatch.setattr(RunReporter, "set_positions", note)
    world.delete_target_topic("a")
    _forget(world, "a")
    world.produce("b", 0, 1)
    assert world.run(Life()) is None
    assert len(counted) > 1
    assert counted == [{"b"}] * len(counted)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_pause_ends_with_its_topic_unless_another_one_has_the_name(world: World, *, is_created_again: bool) -> None:
    world.controls().add("pause", ["a"])
    world.delete_source_topic("a")
    if is_created_again:
        world.create_source_topic("a", 1)
    (gone,) = _forget(world, "a")
    assert gone.ends_pause is not is_created_again
    assert [entry.topic for entry in gather_status(world.config).paused_topics] == (["a"] if is_created_again else [])
    assert world.run(Life()) is None


def test_what_is_there_was_never_mirrored_or_is_handed_over_now_is_refused(world: World) -> None:
    with pytest.raises(ConfigError) as refused:
        _forget(world, "a", "nosuch")
    assert refused.value.problems == ("nosuch: is not in the offset map: it was never mirrored",)
    world.delete_source_topic("a")
    world.controls().add("hand-over", ["a"])
    with pytest.raises(ConfigError, match="a: a migration is handing it over"):
        _forget(world, "a")
    with pytest.raises(ConfigError, match="b: the source and the target still have it"):
        _forget(world, "b")
    world.controls().add("handed-over", ["a"])
    (gone,) = _forget(world, "a")
    assert gone.keeps == ("a migration has handed it over: that stays",)
    assert world.controls().read().handed_over.keys() == {"a"}


@pytest.mark.parametrize("is_applied", [False, True])
def test_the_command_shows_first_and_closes_with_apply(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_applied: bool
) -> None:
    conf = tmp_path / "mirror.yaml"
    conf.write_text(json.dumps(json.loads(world.config.to_json())))
    world.delete_target_topic("a")
    with pytest.raises(SystemExit) as ended:
        cli.main(("forget", str(conf), "a", *(["--apply"] if is_applied else [])))
    assert not ended.value.code
    output = capsys.readouterr()
    assert "its target topic a was deleted, or created again, at the target cluster west" in output.out
    assert ("nothing was closed" in output.err) is not is_applied
    assert len(world.controls().read().forgotten.at_ms) == is_applied


def test_a_mirror_whose_target_topic_was_deleted_stays_registered_for_another_one(world: World) -> None:
    """The registration is a group offset, which brokers delete with its topic; without it no replication cycle is detected."""
    assert _topics_of_registration(world) == {"a", "b"}
    world.delete_target_topic("a")
    assert _topics_of_registration(world) == {"b"}
    assert isinstance(world.run(Life()), IncompleteRunError)
    assert _topics_of_registration(world) == {"b"}


def _topics_of_registration(world: World) -> set[str]:
    return {topic for topic, _ in world.target.group_offsets("m0-origin")}


def test_a_topic_is_forgotten_in_tables_of_a_catalog(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, session = world.config.table_location, object()

    def backend(_location: TableLocation, spark: object) -> TableBackend:
        assert spark is session
        return TableStorage(folder)._backend

    monkeypatch.setattr(storage, "SparkBackend", backend)
    conf = tmp_path / "mirror.yaml"
    conf.write_text(json.dumps({**json.loads(world.config.to_json()), "tables": "catalog:main.kafka"}))
    monkeypatch.setattr(streaming, "session_for_tables", lambda *_, **__: nullcontext(session))
    world.delete_target_topic("a")
    with pytest.raises(SystemExit) as ended:
        cli.main(("forget", str(conf), "a", "--apply"))
    assert not ended.value.code
    assert {topic.topic for topic in world.controls().read().forgotten.at_ms} == {"a"}
