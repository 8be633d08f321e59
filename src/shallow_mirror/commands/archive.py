"""`archive`: keep the record batches of a cluster in an object store."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Annotated

import typer

from shallow_mirror.commands import sessions
from shallow_mirror.commands.options import ArchiveFile
from shallow_mirror.commands.signals import stop_on_signals
from shallow_mirror.logging_setup import LOG_FORMAT_VARIABLE, LogFormat
from shallow_mirror.stderr_capture import stderr_as_json

archive = typer.Typer(
    help="Keep the record batches of a cluster in an object store, as they are, exactly once.", no_args_is_help=True
)


@archive.command()
def run(
    file: ArchiveFile,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Catch up to the log ends of the start, then stop.")
    ] = False,
    for_seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0.0, help="Stop after SECONDS, including the start of Spark."),
    ] = None,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", envvar=LOG_FORMAT_VARIABLE, help="json: one JSON document per line, also for errors."),
    ] = "text",
) -> None:
    """Archive until Ctrl-C or SIGTERM, which stop it at a micro-batch boundary (a second one stops it at once)."""
    os.environ[LOG_FORMAT_VARIABLE] = log_format  # Spark's Python workers read it
    with stderr_as_json(logging.getLogger().level) if log_format == "json" else contextlib.nullcontext():
        from shallow_mirror.streaming.runner.archive_run import Archive

        running = Archive.from_file(file)
        config = running.config
        logging.getLogger(__name__).info("archive %s: objects %s, tables %s", config.archive, config.objects, config.tables)
        stop_on_signals(running)
        running.run(sessions.submitted_session(), available_now=available_now, for_seconds=for_seconds)
