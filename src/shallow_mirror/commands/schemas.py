"""`schemas`: the schemas of the source's Schema Registry that the target's lacks."""

from __future__ import annotations

from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import EXIT_DIFFERENT, AsJson, Conf
from shallow_mirror.commands.sessions import interruptible, session_for


def schemas(
    conf: Conf,
    is_applied: Annotated[bool, typer.Option("--apply", help="Register what the target lacks, with equal ids.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the schemas, compatibility levels and modes that the Schema Registry of the target lacks, and every conflict.

    Nothing is written if there is a conflict. The exit code is 1 while the target lacks schemas.
    """
    from shallow_mirror.operations.status_view import stdout_console
    from shallow_mirror.schemas import copy_schemas, view as schemas_view

    config = load_mirror(conf, "schemas")
    with (
        session_for(config, is_writing=is_applied) as spark,
        interruptible("what was registered stays; run it again to continue"),
    ):
        report = copy_schemas(config, is_applied=is_applied, spark=spark)
    schemas_view.show(report, stdout_console(), as_json=as_json)
    if not report.is_done:
        raise typer.Exit(EXIT_DIFFERENT)
