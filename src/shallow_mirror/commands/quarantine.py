"""`quarantine list | export | retry`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands.exit_codes import EXIT_REFUSED
from shallow_mirror.commands.options import AsJson, Conf
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.plurals import counted

quarantine = typer.Typer(
    help="Batches that the target refused for good, kept as the source sent them (write.on_refused: quarantine).",
    no_args_is_help=True,
)


@quarantine.callback()
def _quarantine(context: typer.Context, conf: Conf) -> None:
    context.obj = conf


@quarantine.command("list")
def quarantine_list(
    context: typer.Context,
    is_all: Annotated[bool, typer.Option("--all", help="Those as well that were released since.")] = False,
    as_json: AsJson = False,
) -> None:
    """What is in quarantine, why, and what to do."""
    from shallow_mirror.checkpoints.quarantine.entries import Quarantine
    from shallow_mirror.checkpoints.storage import MirrorStorage
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.operations.quarantine import show
    from shallow_mirror.operations.status_view import stdout_console

    config = MirrorConfig.load(context.obj)
    with session_for(config) as spark:
        found = Quarantine.open(MirrorStorage(config.table_location, spark), mirror=config.mirror)
        entries = [one for one in found.entries() if is_all or not one.is_released]
    show(entries, stdout_console(), as_json=as_json)


@quarantine.command("export")
def quarantine_export(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made if it is not there.")],
    is_all: Annotated[bool, typer.Option("--all", help="Those as well that were released since.")] = False,
) -> None:
    """A file a batch with its bytes as the source sent them, and a line of JSON each in batches.jsonl."""
    from shallow_mirror.checkpoints.quarantine.entries import Quarantine
    from shallow_mirror.checkpoints.storage import MirrorStorage
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.operations.quarantine import export

    config = MirrorConfig.load(context.obj)
    with session_for(config) as spark:
        found = Quarantine.open(MirrorStorage(config.table_location, spark), mirror=config.mirror)
        count = export(found, [one for one in found.entries() if is_all or not one.is_released], folder)
    print(f"{counted(count, 'batch')} in {folder}")


@quarantine.command("retry")
def quarantine_retry(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option("--topic", metavar="T", help="Only of this source topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", metavar="P", help="Only of this partition.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", metavar="O", help="Only the batch that holds this offset.")] = None,
    takes_over: Annotated[
        bool, typer.Option("--take-over", help="Also from a run that seems to be alive: it ends with exit code 3.")
    ] = False,
) -> None:
    """Write them to the target once more, after the remedy, exactly once. They come to the end of their partitions: their order
    relative to what was copied since is lost. The mirror must be stopped; it goes on with its next start."""
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.operations.quarantine import Selection
    from shallow_mirror.operations.quarantine_retry import retry

    config = MirrorConfig.load(context.obj)
    selection = Selection(topic=topic, partition=partition, offset=offset)
    with session_for(config, is_writing=True) as spark:
        report = retry(config, selection, spark, takes_over=takes_over)
    print("\n".join(report.sentences()))
    if report.refused:
        raise typer.Exit(EXIT_REFUSED)
