"""`verify`: comparison of both clusters, or of an archive and a cluster, through the offset map."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shallow_mirror.commands.file_kinds import load_mirror_or_restore
from shallow_mirror.commands.options import EXIT_DIFFERENT, AsJson, MirrorOrRestore
from shallow_mirror.commands.sessions import interruptible, session_for
from shallow_mirror.errors import ConfigError, OlderTablesError, RetriableError

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig, RestoreConfig
    from shallow_mirror.verify import VerifyReport


def verify(
    conf: MirrorOrRestore,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="T", help="Only this source topic; may be repeated.")
    ] = None,
    is_deep: Annotated[bool, typer.Option("--deep", help="Open every batch and compare records.")] = False,
    from_start: Annotated[bool, typer.Option("--from-start", help="Do not continue an interrupted run of verify.")] = False,
    report_to: Annotated[
        Path | None, typer.Option("--report", metavar="NAME", help="Write the result to NAME.json and NAME.html as well.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Sign both with this Ed25519 key (PEM): NAME.json.sig, NAME.html.sig."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read both clusters through the offset map and report every difference (exit code 1).

    Of a restore file: read the archive and the target cluster. Differences because of older tables are exit code 4.
    """
    from rich.console import Console

    from shallow_mirror.config import RestoreConfig
    from shallow_mirror.progress import progress_on
    from shallow_mirror.verify import verify_mirror, verify_restore

    config = load_mirror_or_restore(conf, "verify")
    keep = _keeper(config, report_to, key, topics)
    with (
        interruptible("what was verified is kept: the same command continues from there"),
        session_for(config) as spark,
        progress_on(Console(stderr=True), "verify") as on_progress,
    ):
        if isinstance(config, RestoreConfig):
            report = verify_restore(
                config,
                topics=topics,
                is_deep=is_deep,
                from_start=from_start,
                on_progress=on_progress,
                spark=spark,
                on_stopped=keep,
            )
        else:
            report = verify_mirror(
                config,
                topics=topics,
                is_deep=is_deep,
                from_start=from_start,
                on_progress=on_progress,
                spark=spark,
                on_stopped=keep,
            )
        if not report.is_equal and (older := _older_tables(config, spark)) is not None:
            keep(replace(report, stopped_by=f"{type(older).__name__}: {older}"))
            raise older
        keep(report)
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))
    if not report.is_equal:
        raise typer.Exit(EXIT_DIFFERENT)


def _older_tables(config: MirrorConfig | RestoreConfig, spark: Any) -> OlderTablesError | None:
    """Return why the tables are older than the target: then it has records that they do not name. Prints if that is not known."""
    from shallow_mirror.operations.recover import older_tables

    try:
        return older_tables(config, spark)
    except (ConfigError, RetriableError) as error:
        print(f"whether the tables are the newest is not known: {error}", file=sys.stderr, flush=True)
        return None


def _keeper(
    config: MirrorConfig | RestoreConfig, name: Path | None, key: Path | None, topics: list[str] | None
) -> Callable[[VerifyReport], None]:
    """Return what is called with the result. Raises ConfigError at once for a key or a folder that cannot be used."""
    if name is None:
        if key is not None:
            raise ConfigError("--key signs the files of --report: give --report NAME as well")
        return lambda report: None
    from shallow_mirror.report.evidence import EvidenceFiles, evidence_document
    from shallow_mirror.report.signature import Signer

    files = EvidenceFiles.of(name, None if key is None else Signer.load(key))
    began_at = datetime.now(UTC)

    def keep(report: VerifyReport) -> None:
        files.write(evidence_document(config, report, topics, began_at, datetime.now(UTC), files.signer))

    return keep
