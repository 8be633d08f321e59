"""Entries of `topics.include` that match no topic: the others are copied, and no command says that all was done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.surroundings import world_of_two_topics
from tests.support import archive_runs, mirror_runs
from tests.support.inline_streams import InlineStreams

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import ArchiveConfig, MirrorConfig
from shallow_mirror.errors import IncompleteRunError
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.operations.status import gather_status
from shallow_mirror.streaming.runs import Archive, Mirror
from shallow_mirror.verify import verify_mirror

UNMATCHED = "topics.include: gone: the source has no such topic, or hides it because DESCRIBE is not granted"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with world_of_two_topics(tmp_path / "world") as opened:
        yield opened


def _mirror(world: FakeWorld, *include: str, exclude: tuple[str, ...] = ()) -> MirrorConfig:
    settings: dict[str, Any] = {"mirror": "m", "tables": "tables", "topics": {"exclude": list(exclude)}}
    config = mirror_runs.config(world.folder, world.source.bootstrap, world.target.bootstrap, include, **settings)
    Mirror(config).run(InlineStreams(world.checkpoints, lambda: None), available_now=True)
    return config


def _archive_config(world: FakeWorld, *include: str, **groups: Any) -> ArchiveConfig:
    return archive_runs.config(world.folder, world.source.bootstrap, include, **groups)


def _archive(world: FakeWorld, *include: str, exclude: tuple[str, ...] = ()) -> ArchiveConfig:
    config = _archive_config(world, *include, topics={"exclude": list(exclude)})
    Archive(config).run(InlineStreams(world.checkpoints, lambda: None), available_now=True)
    return config


_RUNS: list[Callable[..., Any]] = [_mirror, _archive]


@pytest.mark.parametrize("run", _RUNS)
@pytest.mark.parametrize("entry", ["gone", "gone.*"])
def test_a_run_up_to_the_log_ends_copies_the_others_and_names_what_matches_nothing(
    world: FakeWorld, run: Callable[..., Any], entry: str
) -> None:
    for _ in range(2):
        with pytest.raises(IncompleteRunError) as raised:
            run(world, "a", entry)
        assert list(raised.value.left_out) == [UNMATCHED.replace("gone:", f"{entry}:")]
    world.create_source_topic("gone", 1)
    run(world, "a", entry)


@pytest.mark.parametrize("run", _RUNS)
@pytest.mark.parametrize(("entry", "excluded"), [("b", "b"), ("b.*", "b"), ("gone", "gone")])
def test_what_is_excluded_was_not_asked_for(world: FakeWorld, run: Callable[..., Any], entry: str, excluded: str) -> None:
    run(world, "a", entry, exclude=(excluded,))


@pytest.mark.parametrize("run", _RUNS)
def test_a_topic_that_was_copied_and_is_deleted_at_the_source_is_not_left_out(world: FakeWorld, run: Callable[..., Any]) -> None:
    run(world, "a", "b")
    world.delete_source_topic("b")
    run(world, "a", "b")


def test_what_was_copied_is_kept_and_the_problem_is_named_with_its_remedy(
    world: FakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(IncompleteRunError):
        _mirror(world, "a", "gone")
    assert len(world.target.read("a", 0)) == 1
    assert sum(UNMATCHED in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING) == 1
    config = mirror_runs.config(
        world.folder, world.source.bootstrap, world.target.bootstrap, ["a", "gone"], mirror="m", tables="tables"
    )
    problems = [entry.problem for entry in gather_status(config).problems if entry.problem.text == UNMATCHED]
    assert [problem.remedy for problem in problems] == [
        "correct it, or take it out of topics.include; a run without --available-now waits for topics that are created later"
    ]
    assert verify_mirror(config).uncovered == (UNMATCHED,)


def test_the_verification_of_an_archive_names_what_it_does_not_have(world: FakeWorld) -> None:
    with pytest.raises(IncompleteRunError):
        _archive(world, "a", "gone")
    config = _archive_config(world, "a", "gone")
    assert {source.topic for source in ArchiveTable.open(TableStorage(config.table_location)).positions()} == {"a"}
    report = verify_archive(config)
    sentence = "topics.include: the archive has no topic that matches gone: correct or remove the pattern"
    assert (report.is_equal, report.uncovered, report.document()["uncovered"]) == (False, (sentence,), [sentence])
    assert report.sentences()[0] == f"not covered: {sentence}"
    assert report.sentences()[-1].endswith("every object is what its rows say, and not all that was asked for is archived")
    assert verify_archive(_archive_config(world, "a", "gone", topics={"exclude": ["gone"]})).is_equal
