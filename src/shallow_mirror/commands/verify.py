"""`verify`: comparison of both clusters, or of an archive and a cluster, through the offset map."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror_or_restore
from shallow_mirror.commands.options import EXIT_DIFFERENT, AsJson, MirrorOrRestore
from shallow_mirror.commands.sessions import interruptible, session_for


def verify(
    conf: MirrorOrRestore,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this source topic; may be repeated.")
    ] = None,
    is_deep: Annotated[bool, typer.Option("--deep", help="Open every batch and compare records.")] = False,
    from_start: Annotated[bool, typer.Option("--from-start", help="Do not continue an interrupted run of verify.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read both clusters through the offset map and report every difference (exit code 1).

    Of a restore file: read the archive and the target cluster.
    """
    from rich.console import Console

    from shallow_mirror.config import RestoreConfig
    from shallow_mirror.progress import progress_on
    from shallow_mirror.verify import verify_mirror, verify_restore

    config = load_mirror_or_restore(conf, "verify")
    with (
        interruptible("what was verified is kept: the same command continues from there"),
        session_for(config) as spark,
        progress_on(Console(stderr=True), "verify") as on_progress,
    ):
        if isinstance(config, RestoreConfig):
            report = verify_restore(
                config, topics=topics, is_deep=is_deep, from_start=from_start, on_progress=on_progress, spark=spark
            )
        else:
            report = verify_mirror(
                config, topics=topics, is_deep=is_deep, from_start=from_start, on_progress=on_progress, spark=spark
            )
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))
    if not report.is_equal:
        raise typer.Exit(EXIT_DIFFERENT)
