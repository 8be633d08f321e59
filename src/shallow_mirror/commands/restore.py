"""`restore`: copy an archive, up to a cut, into a cluster."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shallow_mirror.commands import sessions
from shallow_mirror.commands.file_kinds import load_restore
from shallow_mirror.commands.options import EXIT_LEFT, EXIT_REFUSED, LogFormatOption
from shallow_mirror.commands.sessions import interruptible, logging_as, stop_on_signals
from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from shallow_mirror.config import RestoreConfig


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The restore file (YAML).")],
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="ISO-8601 with zone: end before the first newer record. Overrides `until`."),
    ] = None,
    at_decision: Annotated[
        int | None,
        typer.Option("--at-decision", metavar="N", min=1, help="End where micro-batch N of the archive did. Overrides `until`."),
    ] = None,
    whole_transactions: Annotated[
        bool, typer.Option("--whole-transactions", help="End earlier where a transaction would be split.")
    ] = False,
    offsets: Annotated[
        str | None,
        typer.Option(
            "--offsets", metavar="preserved|translated", help="Of the records of all topics. Overrides `topics.offsets`."
        ),
    ] = None,
    lifts_retention: Annotated[
        bool,
        typer.Option(
            "--lift-retention",
            help="Of a complete restore: give the topics that it created their archived retention. With --dry-run: show it.",
        ),
    ] = False,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored. Nothing is written, and Spark is not started.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run or --lift-retention: print JSON.")] = False,
    log_format: LogFormatOption = "text",
) -> None:
    """Restore an archive up to the cut of the file. Ctrl-C stops it at a micro-batch boundary; the next call continues there.

    Exit code 1 where something that the file includes was left out.
    """
    config = load_restore(file, "restore").with_cut(time=until, decision=at_decision, is_whole_transactions=whole_transactions)
    config = config.with_offsets(offsets)
    if as_json and not (is_dry_run or lifts_retention):
        raise ConfigError("--json requires --dry-run or --lift-retention: a restore prints no result, it logs")
    if lifts_retention:
        _lift_retention(config, is_applied=not is_dry_run, as_json=as_json)
        return
    if is_dry_run:
        _show_dry_run(config, as_json=as_json)
        return
    with logging_as(log_format):
        from shallow_mirror.streaming.runs import Restore

        running = Restore(config)
        logging.getLogger(__name__).info("restore %s: from %s, tables %s", config.restore, config.archive.tables, config.tables)
        stop_on_signals(running)
        omissions = running.run(sessions.submitted_session())
    if omissions:
        raise typer.Exit(EXIT_LEFT)


def _lift_retention(config: RestoreConfig, *, is_applied: bool, as_json: bool) -> None:
    from shallow_mirror.operations.restore.retention import lift_retention

    with interruptible("what was set stays set: the same command sets the rest"), sessions.session_for(config) as spark:
        report = lift_retention(config, spark, is_applied=is_applied)
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))
    if not report.is_fine:
        raise typer.Exit(EXIT_REFUSED)


def _show_dry_run(config: RestoreConfig, *, as_json: bool) -> None:
    from shallow_mirror.operations.restore.dry_run import dry_run

    with interruptible("nothing was changed"), sessions.session_for(config) as spark:
        report = dry_run(config, spark)
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))
    if not report.is_fine:
        raise typer.Exit(EXIT_REFUSED)
