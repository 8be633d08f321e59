"""`acls` and `quotas`: what the target lacks of the source's permissions and quotas."""

from __future__ import annotations

from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import EXIT_DIFFERENT, AsJson, Conf
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
    from shallow_mirror.access import AclCopy, acl_stores, show_acls
    from shallow_mirror.operations.status_view import stdout_console

    if is_deleting and not is_applied:
        raise ConfigError("--delete requires --apply")
    config = load_mirror(conf, "acls")
    copy = AclCopy(config, *acl_stores(config), is_deleting=is_deleting)
    report = copy.apply(copy.compare()) if is_applied else copy.compare()
    show_acls(report, stdout_console(), as_json=as_json)
    if not report.is_done:
        raise typer.Exit(EXIT_DIFFERENT)


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
    from shallow_mirror.access import QuotaCopy, quota_stores, show_quotas
    from shallow_mirror.operations.status_view import stdout_console

    if is_updating and not is_applied:
        raise ConfigError("--update requires --apply")
    config = load_mirror(conf, "quotas")
    copy = QuotaCopy(config, *quota_stores(config), is_updating=is_updating)
    report = copy.apply(copy.compare()) if is_applied else copy.compare()
    show_quotas(report, stdout_console(), as_json=as_json)
    if not report.is_done:
        raise typer.Exit(EXIT_DIFFERENT)
