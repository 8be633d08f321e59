"""Commands that only read, with tables of before the last copies or commands: they name the tables, and no other writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import Life
from tests.operators.surroundings import isolating_world

from shallow_mirror import cli
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.operations import recover, status
from shallow_mirror.operations.status import gather_status
from shallow_mirror.streaming.watch import PATIENCE_MS

pytestmark = pytest.mark.usefixtures("without_logging")

Called = Callable[..., int]
OLDER = "the tables are older than the target"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    with isolating_world(tmp_path / "world") as opened:
        yield opened


@pytest.fixture
def call(world: FakeWorld, tmp_path: Path) -> Called:
    conf = tmp_path / "mirror.yaml"
    conf.write_text(json.dumps(json.loads(world.config.to_json())))

    def called(command: str, *options: str) -> int:
        with pytest.raises(SystemExit) as ended:
            cli.main((command, str(conf), *options))
        return int(ended.value.code or 0)

    return called


def put_older_tables_back(world: FakeWorld) -> Any:
    """Copy another record and put the tables of before back. Return the newest ones."""
    older = world.copied_tables(with_checkpoint=False)
    world.produce("a", 0, 1)
    assert world.run(Life()) is None
    newest = world.copied_tables(with_checkpoint=False)
    world.put_back(older)
    return newest


def test_a_status_says_that_its_tables_are_older(world: FakeWorld, call: Called, capsys: pytest.CaptureFixture[str]) -> None:
    newest = put_older_tables_back(world)
    assert call("status") == 0
    _, line, *_ = capsys.readouterr().out.splitlines()
    assert line.startswith(f"what follows is not the newest state, and its lag is wrong: {OLDER}: their newest decision is ")
    assert call("status", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["older_tables"].startswith(OLDER)
    assert document["older_tables_unknown"] is None
    world.put_back(newest)
    assert call("status") == 0
    assert "newest" not in capsys.readouterr().out


def test_a_status_says_that_its_tables_lack_a_command(world: FakeWorld) -> None:
    older = world.copied_tables(with_checkpoint=False)
    world.controls().add("pause", ["a"])
    assert world.run(Life()) is None
    world.put_back(older)
    report = gather_status(world.config)
    assert report.paused_topics == ()
    assert report.older_tables is not None
    assert "-controls on the target notes row 1 (pause of a, " in report.older_tables


@pytest.mark.parametrize("problem", [RetriableError("DEADLINE", "gave up"), ConfigError("GROUP_AUTHORIZATION_FAILED")])
def test_a_status_says_that_the_target_does_not_tell_whether_tables_are_older(
    world: FakeWorld, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    asked: list[float] = []

    def refuse(*_: object, patience_ms: float) -> None:
        asked.append(patience_ms)
        raise problem

    monkeypatch.setattr(status, "older_tables", refuse)
    report = gather_status(world.config)
    assert report.older_sentence == f"whether the tables are the newest is not known: {problem}"
    assert (report.target_problem, report.older_tables) == (None, None)
    assert [entry.position for entry in report.partitions] == [1, 1]
    assert 0 < max(asked) <= PATIENCE_MS


def test_a_target_that_does_not_answer_is_not_asked_twice(world: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "query_target", lambda *_, **__: "gone")
    monkeypatch.setattr(status, "older_tables", None)
    report = gather_status(world.config)
    assert (report.target_problem, report.older_sentence) == ("gone", None)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_verify_names_older_tables_and_no_other_writer(
    world: FakeWorld, call: Called, capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    newest = put_older_tables_back(world)
    evidence = tmp_path / "evidence"
    assert call("verify", *options, "--report", str(evidence)) == 4
    output = capsys.readouterr()
    assert output.out == ""
    assert f"OlderTablesError: {OLDER}" in output.err
    assert "another writer" not in output.err
    verification = json.loads(Path(f"{evidence}.json").read_text(encoding="utf-8"))["verification"]
    assert verification["stopped_by"].startswith(f"OlderTablesError: {OLDER}")
    world.put_back(newest)
    assert call("verify", *options) == 0


def test_verify_names_another_writer_where_the_tables_are_the_newest(
    world: FakeWorld, call: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    world.target.produce("a", 0, ["of another writer"])
    assert call("verify") == 1
    output = capsys.readouterr()
    assert "1 not in map" in output.out
    assert "newest" not in output.err


def test_verify_shows_differences_also_where_the_target_does_not_tell_whether_tables_are_older(
    world: FakeWorld, call: Called, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("GROUP_AUTHORIZATION_FAILED")

    monkeypatch.setattr(recover, "older_tables", refuse)
    assert call("verify") == 0
    assert "newest" not in capsys.readouterr().err, "an equal copy needs no question"
    world.target.produce("a", 0, ["of another writer"])
    assert call("verify") == 1
    output = capsys.readouterr()
    assert "1 not in map" in output.out
    assert "whether the tables are the newest is not known: GROUP_AUTHORIZATION_FAILED" in output.err
