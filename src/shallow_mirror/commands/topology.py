"""`topology`: which clusters and topics feed which."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands.exit_codes import EXIT_DIFFERENT
from shallow_mirror.commands.options import AsJson
from shallow_mirror.errors import ConfigError


def topology(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of mirror, archive and restore files (YAML).")],
    is_connecting: Annotated[
        bool, typer.Option("--connect", help="Read topics and cluster ids from the clusters, instead of using patterns only.")
    ] = False,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also write a picture.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which clusters and topics feed which, rings, and topics that are fed twice.

    The exit code is 1 if there is a ring or a topic that is fed twice.
    """
    from shallow_mirror.operations.status_view import stdout_console
    from shallow_mirror.topology import topology_view
    from shallow_mirror.topology.folder_files import read_topology
    from shallow_mirror.topology.topology_svg import build_svg

    shown = read_topology(folder, is_connecting=is_connecting)
    if svg is not None:
        try:
            svg.write_text(build_svg(shown), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--svg: {svg} cannot be written: {error.strerror or error}") from error
    topology_view.show(shown, stdout_console(), as_json=as_json)
    if shown.rings or shown.fed_twice:
        raise typer.Exit(EXIT_DIFFERENT)
