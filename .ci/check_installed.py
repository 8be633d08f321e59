"""Check an installed wheel with the Python of its virtual environment: `python -I check_installed.py FOLDER`.

Every module is imported from the installation alone, every command shows its help, and `init` writes every kind of file into
FOLDER. Modules whose packages are not installed, such as those of an extra, are passed over with `--partial` only.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import shallow_mirror
from shallow_mirror.cli import app
from shallow_mirror.operations.starter_files import StarterKind


def commands(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of every command, also of groups."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands((*path, name), inner)


def output_of(arguments: tuple[str, ...]) -> str:
    """Return what a command prints. Raises SystemExit where it does not succeed."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            app(args=list(arguments), prog_name="shallow-mirror")
    except SystemExit as end:
        if end.code:
            raise SystemExit(f"shallow-mirror {' '.join(arguments)}: exit code {end.code}\n{printed.getvalue()}") from end
    return printed.getvalue()


def main(folder: Path, *, is_partial: bool) -> None:
    origin = Path(shallow_mirror.__file__).resolve()
    if Path(sys.prefix).resolve() not in origin.parents:
        raise SystemExit(f"shallow_mirror comes from {origin}, and not from the environment {sys.prefix}")
    modules = [module.name for module in pkgutil.walk_packages(shallow_mirror.__path__, "shallow_mirror.")]
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not is_partial or str(error.name).startswith("shallow_mirror"):
                raise SystemExit(f"{name} cannot be imported: {error}") from error
    paths = list(commands((), typer.main.get_command(app)))
    for path in paths:
        if "Usage: shallow-mirror" not in output_of((*path, "--help")):
            raise SystemExit(f"shallow-mirror {' '.join(path)} --help prints no usage")
    written = output_of(("init", *StarterKind, "--to", str(folder))).split("\n")[:-1]
    missing = [name for name in written if not Path(name).is_file()]
    if missing or len(written) < len(StarterKind):
        raise SystemExit(f"init wrote {written}; missing: {missing}")
    print(f"{len(modules)} modules, {len(paths)} commands, {len(written)} files of init")


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_partial="--partial" in sys.argv)
