"""Arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Conf = Annotated[Path, typer.Argument(metavar="CONF", help="The mirror file (YAML).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
