"""`sink status`: the state of a DataFrame sink, which has no file of settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shallow_mirror.commands.options import AsJson
from shallow_mirror.commands.sessions import ImportBlocker, submitted_session
from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.tables import TableLocation

sink = typer.Typer(help="Inspect a DataFrame sink (ExactlyOnceKafkaSink).", no_args_is_help=True)


@sink.command("status")
def sink_status(
    tables: Annotated[
        str,
        typer.Argument(metavar="TABLES", help="The sink's `tables`: a folder, a URI, or catalog:CATALOG.SCHEMA."),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Refuse the tables unless they are of the sink with this name.")
    ] = None,
    storage_options: Annotated[
        list[str] | None,
        typer.Option("--storage-option", metavar="KEY=VALUE", help="An option of the object store of TABLES. Repeatable."),
    ] = None,
    is_whole: Annotated[bool, typer.Option("--all", help="Show every target partition, not only the first 40.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the run, the last micro-batches, what is not committed yet, and the target offsets, from the tables alone.

    A catalog needs Spark, which the command starts.
    """
    from shallow_mirror.checkpoints.tables import TableLocation, TableStorage
    from shallow_mirror.config.config_file import absolute
    from shallow_mirror.operations import sink_status_view
    from shallow_mirror.operations.sink_status import gather_sink_status
    from shallow_mirror.operations.status_view import stdout_console

    location = TableLocation(absolute(tables, Path.cwd()), _parsed(storage_options or ()))
    with _session_for(location) as spark:
        report = gather_sink_status(TableStorage(location, spark), name=name)
    sink_status_view.show(report, stdout_console(), as_json=as_json, is_whole=is_whole)


@contextlib.contextmanager
def _session_for(location: TableLocation) -> Iterator[Any]:
    """Yield the session that reads the tables; None if they need no Spark, and then nothing of it is imported."""
    if not location.is_read_by_spark:
        yield None
        return
    ImportBlocker.remove()
    from shallow_mirror.config.config_file import spark_log_of
    from shallow_mirror.streaming import session_for_places

    log_file = spark_log_of("sink-status", location.root, "")
    with session_for_places("sink status", [location.root], submitted_session(), log_file=log_file) as spark:
        yield spark


def _parsed(options: Sequence[str]) -> dict[str, str]:
    """Return options by name. Raises ConfigError."""
    pairs = [option.partition("=") for option in options]
    wrong = [f"--storage-option {name}: expected KEY=VALUE" for name, equals, _ in pairs if not (name and equals)]
    if wrong:
        raise ConfigError(wrong)
    return {name: value for name, _, value in pairs}
