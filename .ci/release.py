"""Build the files of a release into dist/: `make release` (docs/design/releasing.md).

They are built from what is committed, and two builds of a commit are equal byte for byte. `--snapshot` builds any state of a
checkout, for trials and for images: without the checks of the version, and from the files as they are.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import BytesParser
from pathlib import Path

from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
ROOT_PACKAGES = ("streaming", "sinks", "checkpoints")
SUMS = "SHA256SUMS"
_SOURCES = ("src", *ROOT_PACKAGES, "conf")
_FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "NOTICE", "constraints.txt")
_IN_SDIST = ("README.md", "CHANGELOG.md", "LICENSE", "NOTICE", "constraints.txt", "conf/container/Containerfile")


class ReleaseError(Exception):
    """Why these files are not a release."""


def changelog_problems(changelog: str, version: str) -> list[str]:
    """Return why the changelog is not that of a release of `version`."""
    sections = dict(re.findall(r"^## (\S+)(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL))
    problems = []
    if version not in sections:
        problems.append(f"CHANGELOG.md has no section for {version}: move what is under Unreleased there")
    elif not re.match(r" - \d{4}-\d{2}-\d{2}\n", sections[version]):
        problems.append(f"CHANGELOG.md: the heading of {version} has no date: ## {version} - YYYY-MM-DD")
    if sections.get("Unreleased", "").strip():
        problems.append("CHANGELOG.md: Unreleased is not empty: its entries belong to this release, or to none")
    return problems


def module_names(files: Sequence[str]) -> set[str]:
    """Return the modules of the package among the committed files."""
    in_package = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    in_package |= {f"shallow_mirror/{name}" for name in files if name.startswith(tuple(f"{folder}/" for folder in ROOT_PACKAGES))}
    return {name for name in in_package if name.endswith(".py")}


def content_problems(wheel: set[str], sdist: set[str], modules: set[str]) -> list[str]:
    """Return what is missing in the names of both files, or is there without being committed."""
    in_wheel = {name for name in wheel if name.endswith(".py")}
    in_sdist = {name.removeprefix("src/") for name in sdist if name.startswith("src/") and name.endswith(".py")}
    problems = []
    for label, names in (("wheel", in_wheel), ("sdist", in_sdist)):
        problems += [f"the {label} lacks {name}" for name in sorted(modules - names)]
        problems += [f"the {label} has {name}, which is not committed" for name in sorted(names - modules)]
    problems += [f"the sdist lacks {name}" for name in _IN_SDIST if name not in sdist]
    problems += [f"the wheel lacks {name}" for name in ("shallow_mirror/py.typed",) if name not in wheel]
    return problems


def pack_reproducibly(sdist: Path, epoch: int) -> None:
    """Replace an sdist by one with the same files, whose times and owners do not depend on the machine."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as source, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target:
        for entry in sorted(source.getmembers(), key=lambda entry: entry.name):
            plain = tarfile.TarInfo(entry.name)
            plain.type, plain.size, plain.mtime = entry.type, entry.size, epoch
            plain.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            target.addfile(plain, source.extractfile(entry) if entry.isfile() else None)
    with sdist.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=epoch, filename="") as compressed:
        compressed.write(packed.getvalue())


def sums(files: Sequence[Path]) -> str:
    """Return the lines that `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(files))


def build(folder: Path, dist: Path, epoch: int) -> tuple[Path, Path]:
    """Build the sdist from the sources in `folder`, and the wheel from that sdist. Return wheel and sdist."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    _run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(dist), str(folder)], environment)
    (sdist,) = dist.glob("*.tar.gz")
    pack_reproducibly(sdist, epoch)
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(sdist) as archive:
            archive.extractall(name, filter="data")
        (unpacked,) = Path(name).iterdir()
        _run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(unpacked)], environment)
    (wheel,) = dist.glob("*.whl")
    return wheel, sdist


def check(wheel: Path, sdist: Path, version: str, modules: set[str]) -> None:
    """Raise ReleaseError where a file is incomplete, or a package index would reject it."""
    wheel_names = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        names = {entry.name.partition("/")[2]: entry for entry in archive.getmembers() if entry.isfile()}
        metadata = {"sdist": archive.extractfile(names["PKG-INFO"]).read()}  # type: ignore[union-attr]
    (name,) = [name for name in wheel_names if name.endswith(".dist-info/METADATA")]
    metadata["wheel"] = zipfile.ZipFile(wheel).read(name)
    problems = content_problems(wheel_names, set(names), modules)
    for label, document in metadata.items():
        Metadata.from_email(document, validate=True)
        if BytesParser().parsebytes(document)["Description-Content-Type"] != "text/markdown":
            problems.append(f"the description of the {label} is not marked as Markdown")
    versions = {str(parse_wheel_filename(wheel.name)[1]), str(parse_sdist_filename(sdist.name)[1])}
    if versions != {version}:
        problems.append(f"file names have the version {', '.join(sorted(versions))}, version.py has {version}")
    if problems:
        raise ReleaseError("\n".join(problems))


def install(wheel: Path, version: str) -> None:
    """Install the wheel with its pinned dependencies, without extras, into a new virtual environment, and check it there."""
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        programs = Path(name, "bin")
        pip = [str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel)], os.environ, folder=Path(name))
        output = _run([str(programs / "shallow-mirror"), "--version"], os.environ, folder=Path(name))
        if version not in output:
            raise ReleaseError(f"shallow-mirror --version prints {output.strip()} instead of {version}")
        check = [str(programs / "python"), "-I", str(ROOT / ".ci" / "check_installed.py"), str(Path(name, "init")), "--partial"]
        _run(check, os.environ, folder=Path(name))


def sources(folder: Path, *, is_snapshot: bool) -> None:
    """Write what the build needs into `folder`: as it is committed, or of a snapshot as it is in the checkout."""
    if not is_snapshot:
        files = subprocess.run(
            ["git", "archive", "HEAD", *_SOURCES, *_FILES], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(folder, filter="tar")
        return
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in _SOURCES:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in _FILES:
        shutil.copy(ROOT / name, folder / name)


def release(dist: Path, *, is_snapshot: bool, is_installed: bool) -> None:
    """Build and check the files of a release into `dist`. Raises ReleaseError."""
    version = re.findall(r'__version__ = "(.+)"', (ROOT / "src/shallow_mirror/version.py").read_text(encoding="utf-8"))[0]
    if not is_snapshot:
        problems = changelog_problems((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        if _git("status", "--porcelain"):
            problems.append("the checkout has changes that are not committed: git status")
        if problems:
            raise ReleaseError("\n".join(problems))
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        sources(Path(name), is_snapshot=is_snapshot)
        wheel, sdist = build(Path(name), dist, epoch)
    files = _git("ls-files", *(["--cached", "--others", "--exclude-standard"] if is_snapshot else [])).splitlines()
    check(wheel, sdist, version, module_names(files))
    if is_installed:
        install(wheel, version)
    constraints = shutil.copy(ROOT / "constraints.txt", dist / "constraints.txt")
    (dist / SUMS).write_text(sums([wheel, sdist, Path(constraints)]), encoding="utf-8")
    for line in (dist / SUMS).read_text(encoding="utf-8").splitlines():
        print(line)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _run(command: Sequence[str], environment: Mapping[str, str], *, folder: Path = ROOT) -> str:
    """Return the output of a command. Raises ReleaseError with it where the command fails."""
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ended.returncode:
        raise ReleaseError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshot", action="store_true", help="build the checkout as it is, without checking its version")
    parser.add_argument("--no-install", action="store_true", help="do not try the wheel in a new virtual environment")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    try:
        release(arguments.dist, is_snapshot=arguments.snapshot, is_installed=not arguments.no_install)
    except ReleaseError as error:
        sys.exit(f"no release: {error}")


if __name__ == "__main__":
    main()
