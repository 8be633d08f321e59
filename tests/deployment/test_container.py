"""The Containerfile, without a container engine: its steps are run by test_image_root.py (`make long`)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.deployment.image_root import instructions_of
from tests.deployment.manifests import load_mirror

from shallow_mirror.version import __version__

DIST = "dist/"
"""What `make release` writes."""


@pytest.fixture(scope="module")
def instructions(repository: Path) -> list[tuple[str, str]]:
    return instructions_of(repository / "conf" / "container" / "Containerfile")


@pytest.fixture(scope="module")
def script(repository: Path) -> Path:
    return repository / "conf" / "container" / "install.sh"


def test_every_file_that_is_copied_exists_or_is_written_by_make_release(
    instructions: list[tuple[str, str]], repository: Path
) -> None:
    for _, arguments in (entry for entry in instructions if entry[0] == "COPY"):
        *sources, target = arguments.split()
        assert target == "/opt/build/"
        for source in sources:
            if source.startswith(DIST):
                assert fnmatch(f"{DIST}shallow_mirror-{__version__}-py3-none-any.whl", source)
            else:
                assert (repository / source).is_file(), source


def test_the_steps_are_those_of_the_script(instructions: list[tuple[str, str]], script: Path) -> None:
    steps = [arguments for name, arguments in instructions if name == "RUN"]
    (known,) = re.findall(r"^    (\w+(?: \| \w+)*)\) \"\$1\"", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert steps == [f"sh /opt/build/install.sh {step}" for step in known.split(" | ")]
    subprocess.run(["sh", "-n", str(script)], check=True)
    ended = subprocess.run(["sh", str(script), "pakcage"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "usage: install.sh system|package\n")


def test_the_mirror_receives_signals_and_runs_as_a_user_without_rights(instructions: list[tuple[str, str]]) -> None:
    arguments = dict(instructions)
    assert json.loads(arguments["ENTRYPOINT"]) == ["/usr/bin/tini", "--", "/opt/shallow-mirror/bin/shallow-mirror"]
    assert json.loads(arguments["CMD"]) == ["--help"]
    assert arguments["STOPSIGNAL"] == "SIGTERM"
    assert instructions.index(("USER", "10001:10001")) > max(
        index for index, (name, _) in enumerate(instructions) if name in ("COPY", "RUN")
    )


def test_the_port_and_the_folders_are_those_of_the_manifests(instructions: list[tuple[str, str]], repository: Path) -> None:
    arguments = dict(instructions)
    mirror = load_mirror(repository)
    assert int(arguments["EXPOSE"]) == mirror.metrics.port
    assert Path(mirror.tables).is_relative_to(arguments["WORKDIR"])
    assert "SHALLOW_MIRROR_CACHE=/opt/shallow-mirror/cache" in arguments["ENV"]


def test_the_linter_of_containerfiles_finds_nothing(repository: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: it has wheels for Linux and macOS (extra dev)")
    ended = subprocess.run(
        [hadolint, "--no-color", str(repository / "conf" / "container" / "Containerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
