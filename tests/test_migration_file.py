"""The example of a migration file, its JSON schema, and everything that is wrong with a file before anything is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import mirror_runs as runs

from shallow_mirror.config import MigrationConfig
from shallow_mirror.config.conductor_config import ReverseSettings, WriterSettings
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.config.migration_steps import Step
from shallow_mirror.errors import ConfigError

CONF = Path(__file__).parent.parent / "conf"
EXAMPLE = CONF / "migration-example.yaml"


def test_the_example_is_valid_and_says_the_defaults() -> None:
    example = MigrationConfig.load(EXAMPLE)
    assert (example.writers, example.reverse) == (WriterSettings(), ReverseSettings())
    assert example.tables == str(CONF.parent.resolve() / "data/orders-to-west")
    assert MigrationFiles(example).mirror.mirror == "orders-east-west"


def test_the_example_has_every_key_with_a_comment() -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert set(document) == set(MigrationConfig.model_fields)
    assert set(document["waves"][0]) == set(WaveSettings.model_fields)
    lines = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    without = {"writers:", "reverse:", "storage:", "- name: first"}
    assert [line for line in lines if " # " not in line and line.strip() not in without] == []


def written(folder: Path, reverse: dict[str, Any] | None = None, **changes: Any) -> MigrationFiles:
    """Write a migration from east to west with its mirrors, and load it. `reverse` is merged into the reverse mirror's file."""
    forward = runs.document("east:9092", "west:9092", ["orders"], tables="forward")
    backward = runs.document("west:9092", "east:9092", ["orders"], tables="backward")
    backward["source"]["alias"], backward["target"]["alias"] = "west", "east"
    migration: dict[str, Any] = {
        "migration": "m",
        "mirror": "mirror.yaml",
        "waves": [{"name": "all", "topics": ["orders"], "groups": ["billing"], "reverse": "reverse.yaml"}],
        "tables": "migration",
        **changes,
    }
    for name, document in (("mirror", forward), ("reverse", {**backward, **(reverse or {})}), ("migration", migration)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return MigrationFiles(MigrationConfig.load(folder / "migration.yaml"))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    files = written(tmp_path)
    assert files.config.mirror == str(tmp_path / "mirror.yaml")
    assert files.reverses["all"].tables == str(tmp_path / "backward")


def test_every_problem_of_the_file_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        written(tmp_path, waves=[{"name": "a", "topics": ["("]}, {"name": "a", "topics": []}], writers={"quiet": "5"})
    text = str(refused.value)
    assert "is not a regular expression" in text
    assert "waves.1.topics: an empty list" in text
    assert "writers.quiet" in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"writers": {"stop": "deny"}}, "writers.principals: is empty"),
        ({"writers": {"stop": "deny", "principals": ["User:*"]}}, "would deny the mirrors as well"),
        ({"waves": [{"name": "a", "topics": ["a"]}, {"name": "a", "topics": ["b"]}]}, "the name a occurs twice"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("*", r"\*")):
        written(tmp_path, **changes)


@pytest.mark.parametrize(
    ("reverse", "problem"),
    [
        ({"source": {"alias": "north", "client": {"bootstrap.servers": "n:1"}}}, "copies from north to east"),
        ({"topics": {"include": ["orders"], "target_name": "{source}.{topic}"}}, "has to be {topic}"),
        ({"tables": "forward"}, "needs another mirror id and other tables"),
        ({"tables_writer": "spark"}, "starts no Spark"),
    ],
)
def test_a_reverse_mirror_that_is_none_is_refused(tmp_path: Path, reverse: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        written(tmp_path, reverse)


def test_two_waves_need_two_reverse_mirrors(tmp_path: Path) -> None:
    waves = [{"name": name, "topics": [name], "reverse": "reverse.yaml"} for name in ("a", "b")]
    with pytest.raises(ConfigError, match="each wave needs a reverse mirror of its own"):
        written(tmp_path, waves=waves)


def test_the_fingerprint_changes_with_what_moves_where_and_not_with_rates(tmp_path: Path) -> None:
    first = written(tmp_path).fingerprint
    assert written(tmp_path, {"trigger": "5 seconds"}).fingerprint == first
    assert written(tmp_path, waves=[{"name": "all", "topics": ["orders"], "reverse": "reverse.yaml"}]).fingerprint != first
    assert written(tmp_path, {"tables": "elsewhere"}).fingerprint != first
    hook = {"name": "close", "before": "stop writers", "command": ["switch"]}
    assert written(tmp_path, hooks=[hook]).fingerprint == first, "one that fails behind the point of no return can be mended"


def test_hooks_name_steps_and_their_programs_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/switch").symlink_to("/bin/sh")
    hooks = [
        {
            "name": "close",
            "before": "stop writers",
            "command": ["bin/switch", "off"],
            "undo": {"command": ["./bin/switch", "on"]},
        },
        {"name": "open", "after": "admit writers", "url": "https://gateway/switch?to=west&key=1", "timeout": "5 seconds"},
    ]
    close, opened = written(tmp_path, hooks=hooks).config.hooks
    assert (close.place, opened.place) == (("before", Step.STOP_WRITERS), ("after", Step.ADMIT_WRITERS))
    assert close.command == [str(tmp_path / "bin/switch"), "off"], "not what the link leads to"
    assert close.undo is not None
    assert close.undo.command == [str(tmp_path / "bin/switch"), "on"]
    assert (str(opened), opened.timeout_s) == ("POST https://gateway/switch", 5.0), "a query may hold a token"


AT: dict[str, Any] = {"name": "h", "before": "stop writers", "command": ["switch"]}
BACK: dict[str, Any] = {"undo": {"command": ["switch"]}}


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ({**AT, "before": "stop"}, "hooks.0.before: .*'stop writers'"),
        ({**AT, "after": "check"}, "hooks: h: give either before or after"),
        ({"name": "h", "command": ["switch"]}, "hooks: h: give either before or after"),
        ({**AT, "url": "http://g/"}, "hooks: h: give either command or url"),
        ({"name": "h", "before": "check"}, "hooks: h: give either command or url"),
        ({**AT, "command": "switch on"}, "hooks.0.command"),
        ({"name": "h", "before": "check", "url": "gateway"}, "must be a URL such as"),
        ({"name": "h", "before": "check", "url": "http://me:secret@g/"}, "must not hold a user name or password"),
        ({**AT, "headers": {"A": "b"}}, "hooks: h: headers: are those of a url"),
        (
            {"name": "h", "before": "check", "url": "http://g/", "headers": {"X-Api-Key": "s3cret"}},
            "X-Api-Key: secrets are given by",
        ),
        ({"name": "h", "before": "check", "url": "http://g/", "headers": {"A:": "b"}}, "is not the name of an HTTP header"),
        ({**AT, "timeout": "0 seconds"}, "hooks.0.timeout"),
        ({**AT, "undo": {}}, "hooks: h: undo: give either command or url"),
        ({"name": "h", "after": "point of no return", "command": ["s"], **BACK}, "not possible any more"),
        ({"name": "h", "before": "admit writers", "command": ["s"], **BACK}, "not possible any more"),
        ({"name": "h", "before": "start reverse mirror", "command": ["s"], "direction": "rollback"}, "a rollback has no step"),
    ],
)
def test_a_hook_that_could_not_be_called_is_refused(tmp_path: Path, hook: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        written(tmp_path, hooks=[hook])
    assert "s3cret" not in str(refused.value)
    assert "me:secret" not in str(refused.value)


def test_hooks_have_different_names_and_an_undo_is_possible_up_to_the_point_of_no_return(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hooks: the name h occurs twice"):
        written(tmp_path, hooks=[AT, AT])
    last = {**AT, **BACK, "before": "point of no return"}
    assert written(tmp_path, hooks=[last]).config.hooks[0].undo is not None
