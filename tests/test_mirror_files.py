"""Which mirror files `run` takes together, and that it names every problem of every file before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shallow_mirror import cli
from shallow_mirror.commands.mirror_files import expand_folders, load_mirrors
from shallow_mirror.errors import ConfigError

CONF = Path(__file__).parent.parent / "conf"


def document(mirror: str, **changes: Any) -> dict[str, Any]:
    return {
        "mirror": mirror,
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}},
        "topics": {"include": ["orders"]},
        "tables": f"tables-of-{mirror}",
    } | changes


def write_file(folder: Path, name: str, mirror: str, **changes: Any) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(document(mirror, **changes)), encoding="utf-8")
    return path


def problems_of(*arguments: Path) -> list[str]:
    paths, problems = expand_folders(arguments)
    with pytest.raises(ConfigError) as refused:
        load_mirrors(paths, problems, "run")
    return list(refused.value.problems)


def test_a_folder_is_its_yaml_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    second, first = write_file(tmp_path, "b.yml", "b"), write_file(tmp_path, "a.yaml", "a")
    write_file(tmp_path, ".hidden.yaml", "hidden")
    (tmp_path / "readme.txt").write_text("no settings", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    write_file(tmp_path / "folder", "deeper.yaml", "deeper")
    outside = write_file(tmp_path / "folder", "outside.yaml", "outside")
    assert expand_folders([outside, tmp_path]) == ([outside, first, second], [])
    assert [config.mirror for config in load_mirrors([first, second], [], "run")] == ["a", "b"]


def test_a_folder_without_mirror_files_is_refused(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == [f"{tmp_path}: the folder has no file that ends in .yaml or .yml"]


def test_a_file_that_is_named_twice_is_refused_also_through_its_folder_and_a_link(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.yaml", "a")
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    assert problems_of(path, tmp_path) == [f"{path}: the file is named 3 times"]


def test_mirrors_with_one_id_are_refused(tmp_path: Path) -> None:
    first, second = write_file(tmp_path, "a.yaml", "m"), write_file(tmp_path, "b.yaml", "m", tables="others")
    (problem,) = problems_of(tmp_path)
    assert problem.startswith(f"mirror: {first} and {second} have the same mirror id 'm': give each its own")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"tables": "t"}, {"tables": "./t/"}),
        ({"tables": "s3://b/t"}, {"tables": "s3://b/t/", "checkpoint": "c"}),
        ({"checkpoint": "c"}, {"checkpoint": "c/"}),
        ({"tables": "t"}, {"checkpoint": "t/_spark"}),
        ({"tables": "t"}, {"checkpoint": "t"}),
    ],
)
def test_mirrors_that_share_tables_or_a_checkpoint_are_refused(
    tmp_path: Path, first: dict[str, str], second: dict[str, str]
) -> None:
    write_file(tmp_path, "a.yaml", "a", **first)
    write_file(tmp_path, "b.yaml", "b", **second)
    assert {problem.partition(":")[0] for problem in problems_of(tmp_path)} == {"tables, checkpoint"}


@pytest.mark.parametrize("other", [{}, {"port": 9002}, {"port": 9001, "host": "0.0.0.0"}])
def test_mirrors_whose_metrics_have_different_addresses_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    write_file(tmp_path, "a.yaml", "a", metrics={"port": 9001})
    write_file(tmp_path, "b.yaml", "b", metrics=other)
    (problem,) = problems_of(tmp_path)
    assert problem.startswith("metrics.port, metrics.host: one process serves")
    assert f"{tmp_path / 'a.yaml'}: 127.0.0.1:9001" in problem


def test_mirrors_with_one_address_of_metrics_are_taken(tmp_path: Path) -> None:
    paths = [write_file(tmp_path, f"{name}.yaml", name, metrics={"port": 9001}) for name in ("a", "b")]
    assert len(load_mirrors(paths, [], "run")) == 2


def test_every_problem_of_every_file_is_listed_at_once_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write_file(tmp_path, "bad.yaml", "bad", topics={"include": []}, trigger="soon")
    write_file(tmp_path, "good.yaml", "good")
    broken = tmp_path / "broken.yaml"
    broken.write_text("mirror: [", encoding="utf-8")
    archive, restore = CONF / "archive-example.yaml", CONF / "restore-example.yaml"
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(tmp_path), str(archive), str(restore), str(tmp_path / "absent.yaml")])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    for line in (
        f"{bad}: topics.include: an empty list",
        f"{bad}: trigger: ",
        f"{broken} is not YAML",
        f"{archive} is an archive file: use `shallow-mirror archive run`",
        f"{restore} is a restore file: use `shallow-mirror restore`",
        f"cannot read the mirror file {tmp_path / 'absent.yaml'}",
    ):
        assert line in error
    assert "good.yaml" not in error
