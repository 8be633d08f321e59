"""The files of a release: what `make release` checks, and that two builds are equal."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def release(repository: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location("release", repository / ".ci" / "release.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changelog", "problems"),
    [
        ("# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-01-31\n\n- Something.\n", []),
        ("## 0.2.0 - 2026-01-31\n\n- Something.\n", []),
        ("## Unreleased\n\n- Something.\n\n## 0.1.0 - 2025-01-31\n", ["no section for 0.2.0", "Unreleased is not empty"]),
        ("## 0.2.0\n\n- Something.\n", ["heading of 0.2.0 has no date"]),
        ("## Unreleased\n\n- Later.\n\n## 0.2.0 - 2026-01-31\n\n- Something.\n", ["Unreleased is not empty"]),
    ],
)
def test_the_changelog_of_a_release_has_its_version_its_date_and_nothing_unreleased(
    release: ModuleType, changelog: str, problems: list[str]
) -> None:
    found = release.changelog_problems(changelog, "0.2.0")
    assert len(found) == len(problems)
    assert all(expected in problem for expected, problem in zip(problems, found, strict=True))


def test_committed_modules_are_those_of_the_package_and_of_the_root_folders(release: ModuleType) -> None:
    files = ["src/shallow_mirror/cli.py", "sinks/base.py", "tests/test_cli.py", "docs/index.md", "src/shallow_mirror/py.typed"]
    assert release.module_names(files) == {"shallow_mirror/cli.py", "shallow_mirror/sinks/base.py"}


def test_a_module_that_is_missing_or_was_never_committed_is_a_problem(release: ModuleType) -> None:
    others = {"README.md", "CHANGELOG.md", "LICENSE", "NOTICE", "constraints.txt", "conf/container/Containerfile"}
    modules = {"shallow_mirror/cli.py", "shallow_mirror/sinks/base.py"}
    wheel = {*modules, "shallow_mirror/py.typed"}
    sdist = {f"src/{name}" for name in modules} | others
    assert release.content_problems(wheel, sdist, modules) == []
    assert release.content_problems(wheel - {"shallow_mirror/sinks/base.py"}, sdist | {"src/shallow_mirror/new.py"}, modules) == [
        "the wheel lacks shallow_mirror/sinks/base.py",
        "the sdist has shallow_mirror/new.py, which is not committed",
    ]
    assert release.content_problems(wheel - {"shallow_mirror/py.typed"}, sdist - {"constraints.txt"}, modules) == [
        "the sdist lacks constraints.txt",
        "the wheel lacks shallow_mirror/py.typed",
    ]


def test_an_sdist_is_packed_without_times_and_owners_of_the_machine(release: ModuleType, tmp_path: Path) -> None:
    packed = []
    for number, name in enumerate(("first", "second")):
        sdist = tmp_path / name / "p-1.tar.gz"
        sdist.parent.mkdir()
        with tarfile.open(sdist, "w:gz") as archive:
            for file in ("p-1/b.py", "p-1/a.py") if number else ("p-1/a.py", "p-1/b.py"):
                entry = tarfile.TarInfo(file)
                entry.size, entry.mtime, entry.uid, entry.uname = 4, 1_000 + number, number, name
                archive.addfile(entry, io.BytesIO(b"code"))
        release.pack_reproducibly(sdist, 77)
        packed.append(sdist.read_bytes())
    assert packed[0] == packed[1]
    with tarfile.open(tmp_path / "first" / "p-1.tar.gz") as archive:
        assert [(entry.name, entry.mtime, entry.uid, entry.uname, entry.mode) for entry in archive] == [
            ("p-1/a.py", 77, 0, "", 0o644),
            ("p-1/b.py", 77, 0, "", 0o644),
        ]


@pytest.mark.long
def test_two_builds_are_equal_complete_and_have_the_sums_that_are_listed(repository: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        command = [sys.executable, str(repository / ".ci" / "release.py"), "--snapshot", "--no-install"]
        subprocess.run([*command, "--dist", str(tmp_path / name)], check=True, stdout=subprocess.DEVNULL)
    first, second = (
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (tmp_path / name).iterdir()}
        for name in ("first", "second")
    )
    assert first == second
    assert sorted(name.rpartition(".")[2] for name in first) == ["SHA256SUMS", "gz", "txt", "whl"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path / "first", check=True)
