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
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="Only source topics with this name (a regular expression). Repeatable."),
    ] = None,
    is_whole: Annotated[bool, typer.Option("--all", help="Show every partition, not only the first 40.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show positions, lag in offsets and ms, the last micro-batches, the run, and what the mirror waits for.

    Partitions that are left out, behind or paused come first. Tables that are older than the target are reported.
    """
    from shallow_mirror.operations import status_view
    from shallow_mirror.operations.status import StatusReport, gather_status
    from shallow_mirror.operations.status_selection import check_patterns, only_topics

    patterns = topics or []
    check_patterns(patterns)
    config, console = load_mirror_or_restore(conf, "status"), status_view.stdout_console()
    with session_for(config) as spark:

        def gather() -> StatusReport:
            return only_topics(gather_status(config, spark=spark), patterns)

        if is_watching:
            status_view.watch(gather, console, interval_s=interval_s, as_json=as_json, is_whole=is_whole)
        else:
            status_view.show(gather(), console, as_json=as_json, is_whole=is_whole)
