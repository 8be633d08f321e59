"""`init`: files to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.operations.starter_files import StarterKind, write_starter_files


def init(
    kinds: Annotated[
        list[StarterKind] | None,
        typer.Argument(
            metavar="KIND", help="mirror, archive, restore, migration, failover, prometheus, grafana, systemd, kubernetes."
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Folder of the files.")] = Path(),
    is_forced: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Write a commented mirror file with its schema for editors, or other files to begin with.

    prometheus: alerts; grafana: dashboards of mirrors, archives and migrations; systemd and kubernetes: services.
    """
    for path in write_starter_files(kinds or [StarterKind.MIRROR], folder, is_forced=is_forced):
        print(path)
