"""The mirror files of one `run`: which files its arguments name, and what keeps them out of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class MirrorFile:
    path: Path
    config: MirrorConfig


def expand_folders(arguments: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files that the arguments name, those of a folder in the order of their names, and the problems."""
    paths: list[Path] = []
    problems: list[str] = []
    for argument in arguments:
        if not argument.is_dir():
            paths.append(argument)
            continue
        files = sorted(path for path in argument.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
        paths += files
        if not files:
            problems.append(f"{argument}: the folder has no file that ends in {' or '.join(SUFFIXES)}")
    by_file: dict[Path, list[Path]] = {}
    for path in paths:
        by_file.setdefault(path.resolve(), []).append(path)
    problems += [f"{path}: the file is named {len(named)} times" for path, named in by_file.items() if len(named) > 1]
    return [named[0] for named in by_file.values()], problems


def load_mirrors(paths: Sequence[Path], problems: Sequence[str], command: str) -> list[MirrorConfig]:
    """Return the settings of several mirror files. Raises ConfigError with every problem of every file and of the files together.

    `problems`: those that are known already.
    """
    problems = list(problems)
    files: list[MirrorFile] = []
    for path in paths:
        try:
            files.append(MirrorFile(path, load_mirror(path, command)))
        except ConfigError as error:
            # What is wrong with a file as a whole names it already.
            problems += [problem if str(path) in problem else f"{path}: {problem}" for problem in error.problems]
    problems += shared_process_problems(files)
    if problems:
        raise ConfigError(problems)
    return [file.config for file in files]


def shared_process_problems(files: Sequence[MirrorFile]) -> list[str]:
    """PURE. Return what keeps mirrors out of one process."""
    problems = [
        f"mirror: {_listed(paths)} have the same mirror id {name!r}: give each its own, or run them in separate processes if "
        "their targets differ"
        for name, paths in _repeated(files, lambda file: (file.config.mirror,))
    ]
    problems += [
        f"tables, checkpoint: {_listed(paths)} share {folder}: give each mirror its own"
        for folder, paths in _repeated(files, lambda file: sorted({_folder(file.config.tables), _folder(file.config.checkpoint)}))
    ]
    addresses = sorted({_address(file.config) for file in files})
    if len(addresses) > 1:
        of_files = ", ".join(f"{file.path}: {_address(file.config)}" for file in files)
        problems.append(
            f"metrics.port, metrics.host: one process serves the metrics of its mirrors on one port; set the same in all files "
            f"({of_files})"
        )
    return problems


def _repeated(files: Sequence[MirrorFile], values_of: Callable[[MirrorFile], Iterable[str]]) -> list[tuple[str, list[Path]]]:
    by_value: dict[str, list[Path]] = {}
    for file in files:
        for value in values_of(file):
            by_value.setdefault(value, []).append(file.path)
    return [(value, paths) for value, paths in by_value.items() if len(paths) > 1]


def _folder(location: str) -> str:
    return location.rstrip("/")


def _address(config: MirrorConfig) -> str:
    port = config.metrics.port
    return "no port" if port is None else f"{config.metrics.host}:{port}"


def _listed(paths: Sequence[Path]) -> str:
    return " and ".join(map(str, paths))
