"""`restore`: copy an archive, up to a cut, into a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands import sessions
from shallow_mirror.commands.signals import stop_on_signals
from shallow_mirror.logging_setup import LOG_FORMAT_VARIABLE, LogFormat
from shallow_mirror.stderr_capture import stderr_as_json


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The restore file (YAML).")],
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", envvar=LOG_FORMAT_VARIABLE, help="json: one JSON document per line, also for errors."),
    ] = "text",
) -> None:
    """Restore an archive up to the cut of the file. Ctrl-C stops it at a micro-batch boundary; the next call goes on there."""
    os.environ[LOG_FORMAT_VARIABLE] = log_format  # Spark's Python workers read it
    with stderr_as_json(logging.getLogger().level) if log_format == "json" else contextlib.nullcontext():
        from shallow_mirror.streaming.runner.restore_run import Restore

        running = Restore.from_file(file)
        config = running.config
        logging.getLogger(__name__).info("restore %s: from %s, tables %s", config.restore, config.archive.tables, config.tables)
        stop_on_signals(running)
        running.run(sessions.submitted_session())
