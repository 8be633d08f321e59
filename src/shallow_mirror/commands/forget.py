"""`forget` of topics that are gone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import Conf
from shallow_mirror.commands.sessions import session_for


def forget(
    conf: Conf,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of source topics.")],
    is_applied: Annotated[bool, typer.Option("--apply", help="Close it. This cannot be undone.")] = False,
) -> None:
    """Show what is left of topics that were deleted, or deleted and created again, on either cluster; close it with --apply.

    It goes by topic id: another topic of the same name is not affected. A running mirror applies it with its next start.
    """
    from shallow_mirror.checkpoints.tables import TableStorage
    from shallow_mirror.operations import forget as operation

    config = load_mirror(conf, "forget")
    with session_for(config, is_writing=is_applied) as spark:
        if is_applied:
            storage = TableStorage.to_write(config.table_location, config.tables_writer, spark)
        else:
            storage = TableStorage(config.table_location, spark)
        gone = operation.forget(config, storage, topics, spark, is_applied=is_applied)
    for entry in gone:
        print("\n".join(entry.sentences()))
    if is_applied:
        print("closed; a running mirror applies it with its next start", file=sys.stderr)
    else:
        print("nothing was closed: --apply does it, and cannot be undone", file=sys.stderr)
