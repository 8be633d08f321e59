"""`status`: positions, lag, and what the mirror waits for."""

from __future__ import annotations

from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror_or_restore
from shallow_mirror.commands.options import AsJson, MirrorOrRestore
from shallow_mirror.commands.sessions import session_for


def status(
    conf: MirrorOrRestore,
    is_watching: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Pause between two reports of --watch.")
    ] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Show positions, lag in offsets and ms, the last micro-batches, the run, and what the mirror waits for."""
    from shallow_mirror.operations import status_view
    from shallow_mirror.operations.status import gather_status

    config, console = load_mirror_or_restore(conf, "status"), status_view.stdout_console()
    with session_for(config) as spark:
        if is_watching:
            status_view.watch(lambda: gather_status(config, spark=spark), console, interval_s=interval_s, as_json=as_json)
        else:
            status_view.show(gather_status(config, spark=spark), console, as_json=as_json)
