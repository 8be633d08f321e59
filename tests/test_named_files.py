from __future__ import annotations

import errno
from pathlib import Path

import pytest

from shallow_mirror.named_files import naming_file
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.spark import spark_session

FULL_DEVICE = Path("/dev/full")
"""Each write to it fails, with an error that names no file."""


def test_a_write_to_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'") as caught, naming_file(FULL_DEVICE):
        FULL_DEVICE.write_text("{}", encoding="utf-8")
    assert caught.value.errno == errno.ENOSPC


def test_an_error_that_names_its_file_and_one_of_another_kind_pass_unchanged(tmp_path: Path) -> None:
    for raised in (FileNotFoundError(errno.ENOENT, "No such file", "/d/other"), OSError("closed"), ValueError("x")):
        with pytest.raises(type(raised)) as caught, naming_file(tmp_path):
            raise raised
        assert caught.value is raised


def test_files_of_the_planner_and_the_settings_of_sparks_log_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_path: Path, _content: object, **_options: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", no_space)
    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/paused.json"):
        planner_state.write_paused_topics(tmp_path / "paused.json", ["orders"])
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/_spark.log4j2.properties'"):
        spark_session._write_log4j(tmp_path / "_spark.log")
