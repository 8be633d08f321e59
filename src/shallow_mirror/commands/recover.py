"""`recover`: resolution of a decision that needs the operator."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror_or_restore
from shallow_mirror.commands.options import EXIT_RECOVER, AsJson, MirrorOrRestore
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.errors import ConfigError


def recover(
    conf: MirrorOrRestore,
    is_commit: Annotated[
        bool, typer.Option("--commit", help="The records are on the target: keep their rows in the offset map.")
    ] = False,
    is_redo: Annotated[bool, typer.Option("--redo", help="The records are not on the target: copy them again.")] = False,
    is_accepting: Annotated[
        bool,
        typer.Option(
            "--accept-repeats", help="The tables are older than the target: continue from them, and copy again what they lack."
        ),
    ] = False,
    slots: Annotated[
        list[int] | None, typer.Option("--slot", metavar="N", help="Choose for this slot only; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a decision that `run` could not resolve (exit code 4), or resolve it with the operator's choice."""
    from shallow_mirror.config import RestoreConfig
    from shallow_mirror.operations import recover_view
    from shallow_mirror.operations.recover import accept_repeats, inspect, older_tables, resolve
    from shallow_mirror.operations.status_view import stdout_console
    from shallow_mirror.sinks.kafka.protocol import TxnFate

    if is_commit + is_redo + is_accepting > 1:
        raise ConfigError("--commit, --redo and --accept-repeats exclude each other")
    if slots and not (is_commit or is_redo):
        raise ConfigError("--slot requires --commit or --redo")
    config, is_choosing = load_mirror_or_restore(conf, "recover"), is_commit or is_redo
    command = "restore" if isinstance(config, RestoreConfig) else "run"
    with session_for(config, is_writing=is_choosing or is_accepting) as spark:
        # First: with older tables, the transactions of their last decision are not the last ones.
        older = older_tables(config, spark)
        if is_accepting and older is None:
            raise ConfigError("--accept-repeats: the tables have every decision that the target knows of, nothing would repeat")
        if older is not None and not is_accepting:
            raise older
        if older is not None:
            accept_repeats(config, older, spark)
            print(f"accepted: `shallow-mirror {command}` continues from these tables", file=sys.stderr)
            return
        reports = inspect(config, spark)
        recover_view.show(reports, stdout_console(), as_json=as_json)
        needs_choice = any(report.needs_choice for report in reports)
        if needs_choice and not is_choosing:
            raise typer.Exit(EXIT_RECOVER)
        if needs_choice:
            resolve(config, reports, TxnFate.COMMITTED if is_commit else TxnFate.NOT_COMMITTED, slots or (), spark)
    if needs_choice:
        print(f"resolved: `shallow-mirror {command}` continues", file=sys.stderr)
