"""`acls`: the ACLs of the source that users of the target need."""

from __future__ import annotations

from typing import Annotated

import typer

from shallow_mirror.commands.exit_codes import EXIT_DIFFERENT
from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import AsJson, Conf
from shallow_mirror.errors import ConfigError


def acls(
    conf: Conf,
    is_applied: Annotated[bool, typer.Option("--apply", help="Create the ACLs that the target lacks.")] = False,
    is_deleting: Annotated[
        bool,
        typer.Option("--delete", help="With --apply: also delete ACLs for reading that the source does not have."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the ACLs on mirrored topics and on groups that the target lacks, and what is not copied and why.

    The target never allows what the source does not. The exit code is 1 while the target lacks ACLs.
    """
    from shallow_mirror.acls.acl_copy import copy_acls
    from shallow_mirror.operations import acls_view
    from shallow_mirror.operations.status_view import stdout_console

    if is_deleting and not is_applied:
        raise ConfigError("--delete requires --apply")
    report = copy_acls(load_mirror(conf, "acls"), is_applied=is_applied, is_deleting=is_deleting)
    acls_view.show(report, stdout_console(), as_json=as_json)
    if not report.is_done:
        raise typer.Exit(EXIT_DIFFERENT)
