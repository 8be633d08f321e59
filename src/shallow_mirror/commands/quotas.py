"""`quotas`: the quotas of the source that the target lacks."""

from __future__ import annotations

from typing import Annotated

import typer

from shallow_mirror.commands.exit_codes import EXIT_DIFFERENT
from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import AsJson, Conf
from shallow_mirror.errors import ConfigError


def quotas(
    conf: Conf,
    is_applied: Annotated[bool, typer.Option("--apply", help="Create the quotas that the target lacks.")] = False,
    is_updating: Annotated[
        bool,
        typer.Option("--update", help="With --apply: also set quotas that have another value on the target."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the quotas of users and client ids that the target lacks, and what is not copied and why.

    The mirror itself is never limited, and no quota is removed. The exit code is 1 while the target lacks quotas.
    """
    from shallow_mirror.operations import quotas_view
    from shallow_mirror.operations.status_view import stdout_console
    from shallow_mirror.quotas.quota_copy import copy_quotas

    if is_updating and not is_applied:
        raise ConfigError("--update requires --apply")
    report = copy_quotas(load_mirror(conf, "quotas"), is_applied=is_applied, is_updating=is_updating)
    quotas_view.show(report, stdout_console(), as_json=as_json)
    if not report.is_done:
        raise typer.Exit(EXIT_DIFFERENT)
