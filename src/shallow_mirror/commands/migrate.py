"""`migrate`: move topics, groups and writers to another cluster, and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from shallow_mirror.commands.file_kinds import load_migration
from shallow_mirror.commands.options import EXIT_REFUSED, EXIT_WAITS, AsJson
from shallow_mirror.commands.sessions import interruptible
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.progress import Spoken

if TYPE_CHECKING:
    from shallow_mirror.config.migration_config import MigrationFiles
    from shallow_mirror.migration import MigrationState, Options, Printed

State = TypeVar("State")

migrate = typer.Typer(help="Move topics, groups and writers to another cluster, step by step, and back.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The migration file (YAML).")]
NoWait = Annotated[
    bool,
    typer.Option("--no-wait", help="Where somebody outside has to act, say what, and exit with code 5. The next call continues."),
]
SkipHook = Annotated[
    list[str] | None,
    typer.Option("--skip-hook", metavar="NAME", help="Count a hook as done, because it was done by hand. May be repeated."),
]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Fence a conductor that may still be running.")]

_ANSWERS = "migrate {}: waits for both clusters and the tables to answer"
_CHECKS = "checks of both clusters, the groups, the permissions, and the start of the reverse mirror"
CONTINUES = "the same command continues from there"


@migrate.command("plan")
def plan(file: File, as_json: AsJson = False) -> None:
    """Show every step, what is in the way (exit code 1) and how long it takes. Nothing is changed."""
    from shallow_mirror.migration import plan_migration, view

    files = load_migration(file, "migrate plan")
    with interruptible("nothing was changed"), Spoken(_ANSWERS.format("plan")) as spoken:
        planned = plan_migration(files, on_begun=lambda wave: spoken.awaits(f"{wave}: {_CHECKS}"))
    print(json.dumps(planned.document()) if as_json else view.plan_text(planned))
    if not planned.is_fine:
        raise typer.Exit(EXIT_REFUSED)


@migrate.command("rehearse")
def rehearse(
    file: File,
    wave: Annotated[str | None, typer.Option("--wave", metavar="NAME", help="This wave; default: the next one.")] = None,
    takes_over: TakeOver = False,
    as_json: AsJson = False,
) -> None:
    """Perform every step of a wave, and of its rollback, with scratch topics and groups; delete them, and report the times."""
    from shallow_mirror.migration import Options, rehearse as rehearse_wave, view

    files = load_migration(file, "migrate rehearse")
    with (
        interruptible("scratch topics that are left are deleted by the next rehearsal"),
        view.Printed(_ANSWERS.format("rehearse")) as printed,
    ):
        report = rehearse_wave(files, printed, wave, Options(takes_over=takes_over, on_progress=printed.progress))
    print(json.dumps(report.document()) if as_json else "\n".join(report.sentences()))
    if report.left:
        raise typer.Exit(EXIT_REFUSED)


@migrate.command("run")
def run(
    file: File,
    no_wait: NoWait = False,
    takes_over: TakeOver = False,
    skip_hook: SkipHook = None,
    as_json: AsJson = False,
) -> None:
    """Move the waves, step by step, and wait where somebody outside has to act. Continues where an earlier call ended."""
    from shallow_mirror.migration import run_migration, view

    files = load_migration(file, "migrate run")
    with view.Printed(_ANSWERS.format("run")) as printed:
        options = options_of(takes_over, skip_hook, waits=not no_wait, on_progress=printed.progress)
        _conduct(files, lambda: run_migration(files, printed, options), printed, as_json)


@migrate.command("rollback")
def rollback(
    file: File,
    wave: Annotated[
        str | None, typer.Option("--wave", metavar="NAME", help="Only this wave; default: all, the last one first.")
    ] = None,
    no_wait: NoWait = False,
    takes_over: TakeOver = False,
    skip_hook: SkipHook = None,
    as_json: AsJson = False,
) -> None:
    """Bring waves that have moved back to the source, through their reverse mirrors."""
    from shallow_mirror.migration import roll_back, view

    files = load_migration(file, "migrate rollback")
    with view.Printed(_ANSWERS.format("rollback")) as printed:
        options = options_of(takes_over, skip_hook, waits=not no_wait, on_progress=printed.progress)
        _conduct(files, lambda: roll_back(files, printed, wave, options), printed, as_json)


@migrate.command("abort")
def abort(file: File, takes_over: TakeOver = False, skip_hook: SkipHook = None) -> None:
    """Go back to the source, at any step before the point of no return; delete what a killed rehearsal left."""
    from shallow_mirror.migration import Phase, abort as abort_migration, release_sentences, view

    files = load_migration(file, "migrate abort")
    with interruptible(CONTINUES), view.Printed(_ANSWERS.format("abort")) as printed:
        aborted = abort_migration(files, printed, options_of(takes_over, skip_hook))
    for prefix in aborted.rehearsals:
        print(f"rehearsal {prefix}: " + ("could not be removed" if aborted.left else "removed"))
    if (wave := aborted.wave) is not None:
        print(f"wave {wave.name}: aborted; it is {wave.phase}")
        alias = files.mirror.source.alias if wave.phase is Phase.AT_SOURCE else files.mirror.target.alias
        for sentence in release_sentences(files.wave(wave.name), alias):
            print(sentence)
    if aborted.taken_back:
        print(f"handed over by an attempt that was aborted, and taken back: {', '.join(aborted.taken_back)}")
    if aborted.left:
        print("could not be deleted: " + ", ".join(aborted.left))
        raise typer.Exit(EXIT_REFUSED)


@migrate.command("status")
def status(file: File, as_json: AsJson = False) -> None:
    """Show where each wave is, which step comes next, what it waits for, and what was written to the cluster that it has left."""
    from shallow_mirror.migration import view

    files = load_migration(file, "migrate status")
    with Spoken(_ANSWERS.format("status")):
        view.show_state(_newest_state(files), files, as_json=as_json)


@migrate.command("late-writes")
def late_writes(
    file: File,
    wave: Annotated[str | None, typer.Option("--wave", metavar="NAME", help="Only of this wave; default: of all.")] = None,
    carries: Annotated[
        bool, typer.Option("--carry", help="Copy them to the topics where the writers are now; consumers there read them.")
    ] = False,
    quarantines: Annotated[
        bool, typer.Option("--quarantine", help="Copy them to topics of their own there: __late-writes.<topic>.")
    ] = False,
    takes_over: TakeOver = False,
) -> None:
    """Settle records that were written, after the point of no return, to the cluster that a wave has left."""
    from shallow_mirror.migration import (
        Choice,
        Options,
        lost_sentence,
        read_late_writes,
        read_state,
        require_wave,
        settle_late_writes,
        view,
    )

    files = load_migration(file, "migrate late-writes")
    if carries and quarantines:
        raise ConfigError("--carry and --quarantine exclude each other")
    if not carries and not quarantines:
        with Spoken(_ANSWERS.format("late-writes")):
            state = _newest_state(files)
            require_wave(files, state, wave)
            late = read_late_writes(files, state)
        lines = view.late_lines(files, state, late)
        chosen = [name for name in late if wave in (None, name)]
        print("\n".join(f"{name}: {line}" for name in chosen for line in lines[name]) or "no late writes")
        if not all(late[name].is_none for name in chosen):
            raise typer.Exit(EXIT_REFUSED)
        return
    with interruptible(CONTINUES), view.Printed(_ANSWERS.format("late-writes")) as printed:
        choice = Choice.CARRY if carries else Choice.QUARANTINE
        settled = settle_late_writes(files, printed, choice, wave, Options(takes_over=takes_over))
        late = read_late_writes(files, read_state(files))
    for each in settled:
        if each.writes:
            print(f"wave {each.wave}: {counted(len(each.writes), 'range')} copied to {', '.join(each.topics)} at {each.other}")
        for write in each.lost:
            print(f"wave {each.wave}: {lost_sentence(write, each.left)}")
    left = [f"wave {name}: {line}" for name in late if wave in (None, name) for line in view.left_lines(late[name])]
    if not settled and not left:
        print("no late writes")
    print("\n".join(left), end="\n" if left else "")
    if left or any(each.lost for each in settled):
        raise typer.Exit(EXIT_REFUSED)


def _newest_state(files: MigrationFiles) -> MigrationState:
    from shallow_mirror.migration import read_newest_state, read_state

    return newest(files.config.migration, lambda: read_newest_state(files), lambda: read_state(files))


def newest(name: str, read_newest: Callable[[], State], read: Callable[[], State]) -> State:
    """Return the state of a migration or fail-over. Raises ConfigError where the table is an older copy.

    That a target does not tell is printed.
    """
    try:
        return read_newest()
    except RetriableError as error:
        print(f"whether the table of {name} is the newest is not known: {error}", file=sys.stderr, flush=True)
        return read()


def options_of(takes_over: bool, skip_hook: Sequence[str] | None, **others: Any) -> Options:
    """Return the options of a conductor, of a migration or fail-over."""
    from shallow_mirror.migration import Options

    return Options(takes_over=takes_over, skipped_hooks=frozenset(skip_hook or ()), **others)


def conducted(conduct: Callable[[], State], printed: Printed) -> State:
    """Return what a conductor did, of a migration or fail-over. Exits with 5 if somebody outside has to act, having said what."""
    from shallow_mirror.migration import WaitsForOutsideError

    with interruptible(CONTINUES):
        try:
            return conduct()
        except WaitsForOutsideError as waiting:
            printed.waits(waiting.outside)
            raise typer.Exit(EXIT_WAITS) from None


def _conduct(files: MigrationFiles, conduct: Callable[[], MigrationState], printed: Printed, as_json: bool) -> None:
    from shallow_mirror.migration import view

    if view.show_state(conducted(conduct, printed), files, as_json=as_json):
        raise typer.Exit(EXIT_REFUSED)
