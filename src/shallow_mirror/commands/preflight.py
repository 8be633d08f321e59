"""`preflight`: a check of both clusters and a sample of the data, before the mirror runs."""

from __future__ import annotations

from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import EXIT_REFUSED, AsJson, Conf
from shallow_mirror.commands.sessions import interruptible, session_for
from shallow_mirror.errors import ConfigError


def preflight(
    conf: Conf,
    sample_bytes: Annotated[
        int | None,
        typer.Option("--sample", metavar="BYTES", min=1, help="Number of bytes to sample of each partition (default: 64 MiB)."),
    ] = None,
    reads_all: Annotated[bool, typer.Option("--all", help="Read everything up to the current log ends.")] = False,
    is_sized: Annotated[
        bool, typer.Option("--size", help="Look at the traffic of the last 24 hours, and show the cores and memory for it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check what the mirror would do: batches that are copied, rebuilt or refused (exit code 1), settings, ACLs, duration.

    Nothing is changed.
    """
    from rich.console import Console

    from shallow_mirror.operations.status_view import stdout_console
    from shallow_mirror.preflight import DEFAULT_SAMPLE_BYTES, preflight_mirror, view
    from shallow_mirror.progress import progress_on

    if reads_all and sample_bytes is not None:
        raise ConfigError("--sample and --all exclude each other")
    sample_bytes = None if reads_all else sample_bytes or DEFAULT_SAMPLE_BYTES
    config = load_mirror(conf, "preflight")
    with (
        session_for(config) as spark,
        interruptible("nothing was changed"),
        progress_on(Console(stderr=True), "preflight") as on_progress,
    ):
        report = preflight_mirror(config, spark=spark, sample_bytes=sample_bytes, is_sized=is_sized, on_progress=on_progress)
    view.show(report, stdout_console(), as_json=as_json)
    if not report.is_fine:
        raise typer.Exit(EXIT_REFUSED)
