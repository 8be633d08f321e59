"""`import`: mirror files from a configuration of MirrorMaker 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands.options import EXIT_DIFFERENT, AsJson


def import_mirror_maker(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="mm2.properties, or the JSON of a MirrorSourceConnector."),
    ],
    folder: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Folder of the mirror files.")] = Path(),
    target_name: Annotated[
        str | None,
        typer.Option("--target-name", metavar="TEMPLATE", help="Names of target topics, such as '{source}.{topic}'."),
    ] = None,
    is_forced: Annotated[bool, typer.Option("--force", help="Write files that exist again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a mirror file for each enabled flow of MirrorMaker 2, and list what has no counterpart.

    Nothing is asked of a cluster. Passwords and keys are not copied: the files refer to environment variables. The exit code is 1
    if a file has to be corrected before `run` accepts it.
    """
    from shallow_mirror.mirror_maker import mirror_files

    imported = mirror_files.read(path, target_name=target_name)
    written = mirror_files.write(imported, folder, is_forced=is_forced)
    if as_json:
        print(json.dumps(imported.document(written)))
    else:
        for mirror, file in zip(imported.mirrors, written, strict=True):
            print("\n".join([str(file), *(f"  {line}" if line else "" for line in imported.sentences(mirror))]))
        print("next: shallow-mirror preflight FILE")
    if any(mirror_files.problems_of(mirror) for mirror in imported.mirrors):
        raise typer.Exit(EXIT_DIFFERENT)
