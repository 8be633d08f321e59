"""The example of a failover file, its JSON schema, and everything that is wrong with a file before anything is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import mirror_runs as runs

from shallow_mirror.config import FailoverConfig
from shallow_mirror.config.conductor_config import WriterSettings
from shallow_mirror.config.failover_config import BackSettings, FailoverFiles, FailoverGroupSettings
from shallow_mirror.config.hook_settings import HookCall
from shallow_mirror.errors import ConfigError

CONF = Path(__file__).parent.parent / "conf"
EXAMPLE = CONF / "failover-example.yaml"


def test_the_example_is_valid_and_says_the_defaults() -> None:
    example = FailoverConfig.load(EXAMPLE)
    assert (example.groups, example.back, example.writers) == (FailoverGroupSettings(), BackSettings(), WriterSettings())
    assert FailoverFiles(example).mirror.mirror == "orders-east-west"


def test_the_example_has_every_key_with_a_comment() -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert set(document) == set(FailoverConfig.model_fields)
    assert set(document["groups"]) == set(FailoverGroupSettings.model_fields)
    assert set(document["back"]) == set(BackSettings.model_fields)
    lines = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    without = {"groups:", "back:", "storage:"}
    assert [line for line in lines if " # " not in line and line.strip() not in without] == []


def written(folder: Path, mirror_back: dict[str, Any] | None = None, **changes: Any) -> FailoverFiles:
    """Write a fail-over from east to west with its mirrors, and load it. `mirror_back` is merged into the file of the mirror back."""
    forward = runs.document("east:9092", "west:9092", ["orders"], tables="forward")
    backward = runs.document("west:9092", "east:9092", ["orders"], tables="backward", topics={"offsets": {".*": "preserved"}})
    backward["source"]["alias"], backward["target"]["alias"] = "west", "east"
    failover: dict[str, Any] = {
        "failover": "f",
        "mirror": "mirror.yaml",
        "back": {"mirror": "back.yaml"},
        "tables": "failover",
        **changes,
    }
    for name, document in (("mirror", forward), ("back", {**backward, **(mirror_back or {})}), ("failover", failover)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return FailoverFiles(FailoverConfig.load(folder / "failover.yaml"))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    files = written(tmp_path)
    assert files.config.back.mirror == str(tmp_path / "back.yaml")
    assert files.kept_topic("orders") == "__diverged.orders"


@pytest.mark.parametrize(
    ("back", "changes", "problem"),
    [
        ({"source": {"alias": "north", "client": {"bootstrap.servers": "n:1"}}}, {}, "copies from north to east"),
        ({"tables": "forward"}, {}, "needs another mirror id and other tables"),
        ({"topics": {"include": ["orders"], "offsets": {".*": "continued"}}}, {}, "write preserved"),
        ({}, {"back": {"mirror": "back.yaml", "kept": "{topic}"}}, "is the topic itself"),
        ({}, {"writers": {"stop": "deny"}}, "writers.principals: is empty"),
        ({}, {"tables": "catalog:main.state"}, "starts no Spark"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, back: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        written(tmp_path, back, **changes)


def test_the_fingerprint_changes_with_what_goes_where_and_not_with_rates(tmp_path: Path) -> None:
    first = written(tmp_path).fingerprint
    assert written(tmp_path, {"trigger": "5 seconds"}).fingerprint == first
    assert written(tmp_path, {"tables": "elsewhere"}).fingerprint != first


def test_hooks_are_at_steps_of_the_fail_over_and_those_of_the_move_back_at_steps_of_a_migration(tmp_path: Path) -> None:
    undo = {"command": ["bin/switch", "east"]}
    switch = {"name": "switch", "after": "move groups", "command": ["bin/switch", "west"], "undo": undo}
    home = {"name": "home", "after": "admit writers", "command": ["bin/switch", "east"]}
    back = {"mirror": "back.yaml", "hooks": [home]}
    first = written(tmp_path, back={"mirror": "back.yaml"})
    files = written(tmp_path, hooks=[switch], back=back)
    assert files.config.hooks[0].command == [str(tmp_path / "bin/switch"), "west"]
    assert files.config.hooks[0].undo == HookCall(command=[str(tmp_path / "bin/switch"), "east"])
    assert files.config.back.hooks[0].command == [str(tmp_path / "bin/switch"), "east"]
    assert files.fingerprint == first.fingerprint


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hooks": [{"name": "h", "after": "stop writers", "command": ["s"]}]}, r"hooks\.0\.after: .*'move groups'"),
        (
            {"hooks": [{"name": "h", "before": "check the way back", "command": ["s"], "undo": {"command": ["s"]}}]},
            "hooks: h: undo: is called by `failover abort`, which is not possible any more once the way back has begun",
        ),
        (
            {"hooks": [{"name": "h", "after": "report", "command": ["s"], "undo": {}}]},
            "hooks: h: undo: give either command or url",
        ),
        (
            {
                "back": {
                    "mirror": "back.yaml",
                    "hooks": [{"name": "h", "after": "report", "command": ["s"], "undo": {"command": ["s"]}}],
                }
            },
            r"back\.hooks\.0\.undo: unknown key",
        ),
        (
            {"back": {"mirror": "back.yaml", "hooks": [{"name": "h", "after": "fill old topics", "command": ["s"]}]}},
            "back.hooks.0.after",
        ),
        (
            {
                "hooks": [{"name": "h", "after": "report", "command": ["s"]}],
                "back": {"mirror": "back.yaml", "hooks": [{"name": "h", "after": "report", "command": ["s"]}]},
            },
            "back.hooks: h: hooks has one of the same name",
        ),
    ],
)
def test_a_hook_that_could_not_be_called_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        written(tmp_path, **changes)
