"""`groups`: translated offsets of consumer groups at the other cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import EXIT_LEFT, AsJson, Conf, parse_time
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.errors import ConfigError
from shallow_mirror.progress import Spoken


def groups(
    conf: Conf,
    pattern: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only this group; or a regular expression on whole names.")
    ] = None,
    is_reverse: Annotated[
        bool, typer.Option("--reverse", help="Translate the target's groups to the source, for failback.")
    ] = False,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="TIME",
            help="Use the offsets that groups.sync recorded for this time (ISO 8601 with zone, or now).",
        ),
    ] = None,
    is_applied: Annotated[
        bool, typer.Option("--apply", help="Commit these offsets on the other cluster, for groups that have no members on it.")
    ] = False,
    is_forced: Annotated[
        bool,
        typer.Option(
            "--force", help="With --apply: also move offsets backwards, and use the nearest offset where there is no exact one."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show consumer groups with their translated offsets, what they would repeat or wait for, and what prevents a commit.

    With --apply the exit code is 1 while offsets of a mirrored topic are not committed.
    """
    from shallow_mirror.groups import view
    from shallow_mirror.groups.sync_once import sync_groups
    from shallow_mirror.operations.recover import require_newest_tables
    from shallow_mirror.operations.status_view import stdout_console

    if is_forced and not is_applied:
        raise ConfigError("--force requires --apply")
    at, config = parse_time(as_of), load_mirror(conf, "groups")
    with Spoken("groups: waits for the tables") as spoken, session_for(config) as spark:
        if is_applied:
            spoken.awaits("groups: waits for the target to tell whether the tables are the newest")
            require_newest_tables(config, spark)
        report = sync_groups(
            config,
            spark=spark,
            pattern=pattern,
            is_reverse=is_reverse,
            as_of=at,
            is_applied=is_applied,
            is_forced=is_forced,
            on_wait=lambda awaited: spoken.awaits(f"groups: waits for {awaited}"),
        )
    view.show(report, stdout_console(), as_json=as_json)
    if is_applied and not report.is_done:
        raise typer.Exit(EXIT_LEFT)
