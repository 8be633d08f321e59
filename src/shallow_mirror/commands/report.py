"""`report`: an HTML page about the mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror_or_restore
from shallow_mirror.commands.options import MirrorOrRestore
from shallow_mirror.commands.sessions import session_for


def report(
    conf: MirrorOrRestore,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: report-<mirror>.html in the current folder.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="T", help="Show the offset map of this source topic.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="P", min=0, help="Show the offset map of this partition.")
    ] = None,
) -> None:
    """Write one HTML page: throughput, lag, time by step, batches, problems, a chart of the offset map."""
    from shallow_mirror.report.run import write_report

    config = load_mirror_or_restore(conf, "report")
    path = Path(f"report-{config.mirror}.html") if out is None else out
    with session_for(config) as spark:
        write_report(config, path, topic=topic, partition=partition, spark=spark)
    print(path)
