"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Conf = Annotated[Path, typer.Argument(metavar="CONF", help="The mirror file (YAML).")]
ArchiveFile = Annotated[Path, typer.Argument(metavar="FILE", help="The archive file (YAML).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
