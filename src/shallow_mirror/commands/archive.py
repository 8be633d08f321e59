"""`archive`: keep the record batches of a cluster in an object store."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands import sessions
from shallow_mirror.commands.file_kinds import load_archive, require_kind
from shallow_mirror.commands.options import EXIT_DIFFERENT, ArchiveFile, AsJson, AvailableNow, ForSeconds, LogFormatOption
from shallow_mirror.commands.sessions import interruptible, logging_as, stop_on_signals
from shallow_mirror.errors import ConfigError

archive = typer.Typer(
    help="Keep the record batches of a cluster in an object store, as they are, exactly once.", no_args_is_help=True
)


@archive.command()
def run(
    file: ArchiveFile,
    available_now: AvailableNow = False,
    for_seconds: ForSeconds = None,
    log_format: LogFormatOption = "text",
) -> None:
    """Archive until Ctrl-C or SIGTERM, which stop it at a micro-batch boundary (a second one stops it at once)."""
    with logging_as(log_format):
        from shallow_mirror.streaming.runs import Archive

        require_kind(file, "archive run")
        running = Archive.from_file(file)
        config = running.config
        logging.getLogger(__name__).info("archive %s: objects %s, tables %s", config.archive, config.objects, config.tables)
        stop_on_signals(running)
        running.run(sessions.submitted_session(), available_now=available_now, for_seconds=for_seconds)


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")]


@archive.command()
def status(file: ArchiveFile, as_json: AsJson = False) -> None:
    """Show what is archived of each topic, the lag behind the source, the last decision and the run."""
    from shallow_mirror.operations.archive import status_view as archive_status_view
    from shallow_mirror.operations.archive.status import gather_archive_status
    from shallow_mirror.operations.status_view import stdout_console

    config = load_archive(file, "archive status")
    with sessions.session_for(config) as spark:
        archive_status_view.show(gather_archive_status(config, spark), stdout_console(), as_json=as_json)


@archive.command()
def verify(
    file: ArchiveFile,
    is_deep: Annotated[
        bool, typer.Option("--deep", help="Check every batch by its own checksum and its offsets, and the footers of objects.")
    ] = False,
    rebuild: Annotated[
        str | None,
        typer.Option(
            "--rebuild",
            metavar="TABLES",
            help="Write a new table there (a folder, URI, or catalog:CATALOG.SCHEMA) from the footers of objects.",
        ),
    ] = None,
    accepts_holes: Annotated[
        bool, typer.Option("--accept-holes", help="With --rebuild: record offsets that no object has as gaps.")
    ] = False,
    archive_id: Annotated[
        str | None, typer.Option("--archive-id", help="With --rebuild: which archive, where `objects` holds several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare rows with each other and with their objects, and report every difference (exit code 1).

    An entry of `topics.include` of which nothing is archived is reported as not covered (exit code 1).

    Reads every byte of the archive, also while it runs.
    """
    from shallow_mirror.config.config_file import absolute
    from shallow_mirror.operations.archive import rebuild as archive_rebuild
    from shallow_mirror.operations.archive.verify import ProgressLines, verify_archive

    if rebuild is None and (accepts_holes or archive_id is not None):
        raise ConfigError("--accept-holes and --archive-id require --rebuild")
    config = load_archive(file, "archive verify")
    if rebuild is not None:
        if is_deep:
            raise ConfigError("--deep and --rebuild exclude each other: verify the new table afterwards")
        tables = absolute(rebuild, Path.cwd())
        with (
            interruptible("delete the new table, and rebuild again"),
            sessions.session_for(config.model_copy(update={"tables": tables})) as spark,
        ):
            rebuilt = archive_rebuild.rebuild(config, tables, spark, archive_id=archive_id, accepts_holes=accepts_holes)
        print(json.dumps(rebuilt.document()) if as_json else "\n".join(rebuilt.sentences()))
        return
    with interruptible("nothing was changed"), sessions.session_for(config) as spark:
        report = verify_archive(config, spark, is_deep=is_deep, on_progress=ProgressLines(sys.stderr))
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))
    if not report.is_equal:
        raise typer.Exit(EXIT_DIFFERENT)


@archive.command()
def clean(
    file: ArchiveFile,
    is_dry_run: DryRun = False,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Leave younger objects alone, by the clock of the store.")
    ] = "24 hours",
) -> None:
    """Remove objects that interrupted runs left: those of a decision that is over, which no row names. Safe beside a run."""
    from shallow_mirror.config.values import parse_duration
    from shallow_mirror.operations.archive import clean as archive_clean

    try:
        older_than_s = parse_duration(older_than)
    except ValueError as error:
        raise ConfigError(f"--older-than: {error}") from error
    config = load_archive(file, "archive clean")
    with interruptible("the same command continues"), sessions.session_for(config) as spark:
        cleaned = archive_clean.clean(
            config,
            spark,
            is_dry_run=is_dry_run,
            older_than_s=older_than_s,
            on_orphan=lambda orphan: print(f"{orphan.info.name} {orphan.info.size_bytes}"),
        )
    print("\n".join(cleaned.sentences()))


@archive.command()
def adopt(file: ArchiveFile) -> None:
    """Let the objects belong to the table of FILE. For a rebuilt table, when the former one is lost or not used any more."""
    from shallow_mirror.operations.archive import adopt as archive_adopt

    config = load_archive(file, "archive adopt")
    with interruptible("the same command says whose the objects are"), sessions.session_for(config) as spark:
        print(archive_adopt.adopt(config, spark))


@archive.command()
def expire(
    file: ArchiveFile,
    is_dry_run: DryRun = False,
    takes_over: Annotated[
        bool, typer.Option("--take-over", help="Take over from a run that seems to be alive: it ends with exit code 3.")
    ] = False,
) -> None:
    """Delete the objects that `retention` does not keep. A running archive does so by itself; this one must be stopped."""
    from shallow_mirror.operations.archive import expire as archive_expire

    config = load_archive(file, "archive expire")
    with (
        interruptible("the same command, or the next run, continues"),
        sessions.session_for(config, is_writing=not is_dry_run) as spark,
    ):
        expired = archive_expire.expire(
            config,
            spark,
            is_dry_run=is_dry_run,
            takes_over=takes_over,
            on_object=lambda expired: print(f"{expired.name} {expired.size_bytes}"),
        )
    print(expired.sentence())
