"""`failover`: continue at the target of a mirror whose source is gone, and come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shallow_mirror.commands.file_kinds import load_failover
from shallow_mirror.commands.migrate import CONTINUES, NoWait, SkipHook, TakeOver, conducted, newest, options_of
from shallow_mirror.commands.options import EXIT_LEFT, EXIT_REFUSED, AsJson
from shallow_mirror.commands.sessions import interruptible
from shallow_mirror.progress import Spoken

if TYPE_CHECKING:
    from shallow_mirror.config.failover_config import FailoverFiles
    from shallow_mirror.migration.failover import FailoverState, Printed

failover = typer.Typer(
    help="Continue at the target when the source is gone, and come back when it has returned.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The failover file (YAML).")]


@failover.command("plan")
def plan(file: File, as_json: AsJson = False) -> None:
    """Show the steps, what is in the way (exit code 1), and the recorded offsets; once failed over, of the way back.

    Nothing is changed. While the source answers, this shows whether a fail-over would be possible.
    """
    from shallow_mirror.migration.failover import plan_failover, view

    files = load_failover(file, "failover plan")
    with interruptible("nothing was changed"), Spoken("failover plan: waits for the clusters and the tables to answer"):
        planned = plan_failover(files)
    print(json.dumps(planned.document()) if as_json else view.plan_text(planned, files))
    if planned.problems:
        raise typer.Exit(EXIT_REFUSED)


@failover.command("run")
def run(
    file: File,
    despite_source: Annotated[
        bool, typer.Option("--despite-source", help="Fail over although a broker of the source answers.")
    ] = False,
    takes_over: TakeOver = False,
    skip_hook: SkipHook = None,
    as_json: AsJson = False,
) -> None:
    """End the mirror, move the groups, and count what is repeated or missing. The source is not asked for anything.

    The exit code is 1 if an offset of a group could not be moved. Continues where an earlier call ended.
    """
    from shallow_mirror.migration.failover import fail_over, view

    files = load_failover(file, "failover run")
    with view.Printed("failover run: waits for the target and the tables to answer", files) as printed:
        options = options_of(takes_over, skip_hook)
        _conduct(files, lambda: fail_over(files, printed, options, despite_source=despite_source), printed, as_json)


@failover.command("back")
def back(
    file: File,
    no_wait: NoWait = False,
    takes_over: TakeOver = False,
    skip_hook: SkipHook = None,
    as_json: AsJson = False,
) -> None:
    """Bring topics, groups and writers back: what only the old source has is kept, and its topics are filled again.

    Waits where somebody outside has to act. Continues where an earlier call ended. The exit code is 1 if late writes or groups
    are left at the target.
    """
    from shallow_mirror.migration.failover import fail_back, view

    files = load_failover(file, "failover back")
    with view.Printed("failover back: waits for both clusters and the tables to answer", files) as printed:
        options = options_of(takes_over, skip_hook, waits=not no_wait, on_progress=printed.progress)
        _conduct(files, lambda: fail_back(files, printed, options), printed, as_json)


@failover.command("abort")
def abort(
    file: File,
    despite_groups: Annotated[
        bool, typer.Option("--despite-groups", help="Abort although groups have committed offsets at the target since.")
    ] = False,
    takes_over: TakeOver = False,
    skip_hook: SkipHook = None,
) -> None:
    """Take a fail-over back that was a false alarm: the mirror may start again, and continues where it ended.

    Refused where the target is in use: records of others in its topics, groups with members or with other offsets.
    """
    from shallow_mirror.migration.failover import abort_failover, view

    files = load_failover(file, "failover abort")
    with (
        interruptible(CONTINUES),
        view.Printed("failover abort: waits for both clusters and the tables to answer", files) as printed,
    ):
        abort_failover(files, printed, options_of(takes_over, skip_hook), despite_groups=despite_groups)
    print(f"fail-over {files.config.failover}: aborted; start mirror {files.mirror.mirror} again: it continues where it ended")


@failover.command("status")
def status(file: File, as_json: AsJson = False) -> None:
    """Show every step that was done, and by group what is repeated or missing at most. The source is not asked for anything."""
    from shallow_mirror.migration.failover import read_failover, read_newest_failover, view

    files = load_failover(file, "failover status")
    with Spoken("failover status: waits for the target and the tables to answer"):
        state = newest(files.config.failover, lambda: read_newest_failover(files), lambda: read_failover(files))
        view.show_state(state, files, as_json=as_json)


def _conduct(files: FailoverFiles, conduct: Callable[[], FailoverState], printed: Printed, as_json: bool) -> None:
    from shallow_mirror.migration.failover import view

    if view.show_state(conducted(conduct, printed), files, as_json=as_json):
        raise typer.Exit(EXIT_LEFT)
