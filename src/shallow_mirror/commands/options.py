"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.logging_setup import LOG_FORMAT_VARIABLE, LogFormat

Conf = Annotated[Path, typer.Argument(metavar="CONF", help="The mirror file (YAML).")]
Confs = Annotated[
    list[Path],
    typer.Argument(metavar="CONF", help="The mirror file (YAML). Several, or a folder of them, run in one process."),
]
MirrorOrRestore = Annotated[Path, typer.Argument(metavar="CONF", help="The mirror file, or a restore file (YAML).")]
ArchiveFile = Annotated[Path, typer.Argument(metavar="FILE", help="The archive file (YAML).")]
AvailableNow = Annotated[bool, typer.Option("--available-now", help="Catch up to the log ends of the start, then stop.")]
ForSeconds = Annotated[
    float | None,
    typer.Option("--for", metavar="SECONDS", min=0.0, help="Stop after SECONDS, including the start of Spark."),
]
LogFormatOption = Annotated[
    LogFormat,
    typer.Option("--log-format", envvar=LOG_FORMAT_VARIABLE, help="json: one JSON document per line, also for errors."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
