"""`quarantine list | export | retry`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror_or_restore
from shallow_mirror.commands.options import EXIT_REFUSED, AsJson, MirrorOrRestore
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.plurals import counted

quarantine = typer.Typer(
    help="List, export or retry batches that could not be copied (write.on_refused: quarantine).",
    no_args_is_help=True,
)

All = Annotated[bool, typer.Option("--all", help="Include batches that were released since, and those of forgotten topics.")]


@quarantine.command("list")
def quarantine_list(conf: MirrorOrRestore, is_all: All = False, as_json: AsJson = False) -> None:
    """List the batches in quarantine with the reason and the remedy of each."""
    from shallow_mirror.checkpoints.logs import Quarantine
    from shallow_mirror.checkpoints.tables import TableStorage
    from shallow_mirror.operations.quarantine import in_quarantine, show
    from shallow_mirror.operations.status_view import stdout_console

    config = load_mirror_or_restore(conf, "quarantine list")
    with session_for(config) as spark:
        storage = TableStorage(config.table_location, spark)
        batches = Quarantine.open(storage, mirror=config.mirror)
        entries = batches.entries() if is_all else in_quarantine(batches.entries(), storage)
    show(entries, stdout_console(), as_json=as_json)


@quarantine.command("export")
def quarantine_export(
    conf: MirrorOrRestore,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; created if missing.")],
    is_all: All = False,
) -> None:
    """Write one file per batch with its bytes as the source sent them, and batches.jsonl with a line for each."""
    from shallow_mirror.checkpoints.logs import Quarantine
    from shallow_mirror.checkpoints.tables import TableStorage
    from shallow_mirror.operations.quarantine import export, in_quarantine

    config = load_mirror_or_restore(conf, "quarantine export")
    with session_for(config) as spark:
        storage = TableStorage(config.table_location, spark)
        batches = Quarantine.open(storage, mirror=config.mirror)
        count = export(batches, batches.entries() if is_all else in_quarantine(batches.entries(), storage), folder)
    print(f"{counted(count, 'batch')} in {folder}")


@quarantine.command("retry")
def quarantine_retry(
    conf: MirrorOrRestore,
    topic: Annotated[str | None, typer.Option("--topic", metavar="T", help="Only of this source topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="P", help="Only of this partition.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", metavar="O", help="Only the batch that contains this offset.")] = None,
    takes_over: Annotated[
        bool, typer.Option("--take-over", help="Take over from a run that appears to be alive; it exits with code 3.")
    ] = False,
) -> None:
    """Write quarantined batches to the target after the remedy, exactly once.

    They are appended to their partitions: their order relative to what was copied since is lost. The mirror must be stopped; it
    continues with its next start.
    """
    from shallow_mirror.operations.quarantine import Selection
    from shallow_mirror.operations.quarantine_retry import retry

    config = load_mirror_or_restore(conf, "quarantine retry")
    selection = Selection(topic=topic, partition=partition, offset=offset)
    with session_for(config, is_writing=True) as spark:
        report = retry(config, selection, spark, takes_over=takes_over)
    print("\n".join(report.sentences()))
    if not report.is_complete:
        raise typer.Exit(EXIT_REFUSED)
