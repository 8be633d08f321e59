"""Arguments and options that several commands share, the times in them, and the exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.errors import ConfigError, FencedError, MirrorError, OlderTablesError, RecoverNeededError
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

EXIT_ERROR, EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER, EXIT_WAITS = 1, 2, 3, 4, 5
EXIT_DIFFERENT, EXIT_REFUSED, EXIT_LEFT, EXIT_INTERRUPTED = 1, 1, 1, 130


def exit_code_of(error: MirrorError) -> int:
    """Return the exit code of an error that ends a command."""
    match error:
        case ConfigError():
            return EXIT_CONFIG
        case FencedError():
            return EXIT_FENCED
        case RecoverNeededError() | OlderTablesError():
            return EXIT_RECOVER
        case _:
            return EXIT_ERROR


def exit_code_of_several(ends: Sequence[BaseException | None]) -> int:
    """Return the exit code of a process whose mirrors have ended with these errors; None: a mirror ended without one.

    3 comes first, because a restart would take over again. 1 comes before 4 and 2: a restart helps the mirrors that ended with
    it, and does not harm the others, which end again as they did.
    """
    codes = {EXIT_ERROR if not isinstance(error, MirrorError) else exit_code_of(error) for error in ends if error is not None}
    return next((code for code in (EXIT_FENCED, EXIT_ERROR, EXIT_RECOVER, EXIT_CONFIG) if code in codes), 0)


def parse_time(text: str | None) -> datetime | None:
    """Return the time of --as-of; None without one. Raises ConfigError."""
    if text is None:
        return None
    if text == "now":
        return datetime.now(UTC)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--as-of: {text!r} is not an ISO-8601 time") from error
    if at.tzinfo is None:
        raise ConfigError(f"--as-of: {text!r} has no time zone: write {text}Z for UTC")
    return at.astimezone(UTC)
