"""The command line. Results on stdout, logs and progress on stderr; reading commands start no JVM, except for catalog tables.

Exit codes: 0 success; 1 a difference, something that will be rejected, or stopped on an error; 2 wrong usage or configuration;
3 fenced by another run; 4 the operator must run `recover`; 5 `migrate --no-wait` waits for somebody. 3 and 4 must not be
restarted automatically.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from shallow_mirror.commands.acls import acls, quotas
from shallow_mirror.commands.archive import archive
from shallow_mirror.commands.broken_surroundings import explaining_surroundings
from shallow_mirror.commands.completion import completion, register_shells
from shallow_mirror.commands.failover import failover
from shallow_mirror.commands.forget import forget
from shallow_mirror.commands.groups import groups
from shallow_mirror.commands.import_mirror_maker import import_mirror_maker
from shallow_mirror.commands.init import init
from shallow_mirror.commands.local import demo, local_kafka
from shallow_mirror.commands.migrate import migrate
from shallow_mirror.commands.mirror_maker import mm2
from shallow_mirror.commands.options import exit_code_of
from shallow_mirror.commands.pause import pause, resume
from shallow_mirror.commands.preflight import preflight
from shallow_mirror.commands.quarantine import quarantine
from shallow_mirror.commands.recover import recover
from shallow_mirror.commands.redo import redo
from shallow_mirror.commands.report import report
from shallow_mirror.commands.restore import restore
from shallow_mirror.commands.run import run
from shallow_mirror.commands.schemas import schemas
from shallow_mirror.commands.sessions import ImportBlocker
from shallow_mirror.commands.sink import sink
from shallow_mirror.commands.status import status
from shallow_mirror.commands.topology import topology
from shallow_mirror.commands.translate import translate
from shallow_mirror.commands.verify import verify
from shallow_mirror.errors import MirrorError
from shallow_mirror.logging_setup import begin_logging, print_error
from shallow_mirror.version import __version__

app = typer.Typer(
    name="shallow-mirror",
    help="Copy Kafka topics between clusters as raw record batches, exactly once, with an exact map of offsets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_GROUPS = {
    "Begin": ((init, None), (import_mirror_maker, "import"), (preflight, None), (demo, None), (local_kafka, "local-kafka")),
    "Copy": ((run, None), (pause, None), (resume, None), (redo, None), (recover, None), (forget, None)),
    "Inspect and verify": ((status, None), (report, None), (topology, None), (translate, None), (verify, None)),
    "Groups, access and schemas": ((groups, None), (acls, None), (quotas, None), (schemas, None)),
    "Archive and restore": ((restore, None),),
}
"""The commands of each panel of `--help`. Without a name a command has that of its function."""

for panel, commands in _GROUPS.items():
    for command, name in commands:
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(quarantine, name="quarantine", rich_help_panel="Copy")
app.add_typer(sink, name="sink", rich_help_panel="Inspect and verify")
app.add_typer(archive, name="archive", rich_help_panel="Archive and restore")
app.add_typer(migrate, name="migrate", rich_help_panel="Move")
app.add_typer(failover, name="failover", rich_help_panel="Move")
app.add_typer(mm2, name="mm2", rich_help_panel="Move")
app.command(rich_help_panel="Begin")(completion)

# Commands that start faster without pandas and the clients of kafka-python, which they do not need: see ImportBlocker. Where
# such a command needs Spark after all, commands/sessions.py removes the blocker.
_READING_COMMANDS = (
    "preflight", "status", "translate", "groups", "acls", "quotas", "schemas", "topology", "recover", "verify", "quarantine",
    "report", "import", "mm2", "init", "completion", "sink",
)  # fmt: skip
_OWN_PROCESS = object()
"""The context object of an invocation as the console script, where imports may be blocked for the whole process."""


def _show_version(is_requested: bool) -> None:
    """Print name and version and end the process, before a command is required."""
    if is_requested:
        print(f"shallow-mirror {__version__}")
        raise typer.Exit


@app.callback()
def _prepare(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.obj is _OWN_PROCESS and context.invoked_subcommand in _READING_COMMANDS:
        ImportBlocker.install()
    begin_logging("text", logging.DEBUG if verbose else logging.INFO)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script: always raises SystemExit. Without `arguments` the process is assumed to run nothing else."""
    if arguments is None:
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # pydantic searches all installed packages for them
    register_shells()
    try:
        with explaining_surroundings():
            if arguments is None:
                app(prog_name="shallow-mirror", obj=_OWN_PROCESS)
            else:
                app(args=list(arguments), prog_name="shallow-mirror")
    except MirrorError as error:
        print_error(error)
        sys.exit(exit_code_of(error))


if __name__ == "__main__":
    main()
