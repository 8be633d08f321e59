"""Driver: sentences of a conductor for whoever has to act."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from shallow_mirror.config.migration_config import MigrationConfig, WaveSettings
from shallow_mirror.errors import LateWritesError
from shallow_mirror.migration.observations import MirrorRun, named
from shallow_mirror.migration.state import Phase, WaveState
from shallow_mirror.migration.steps import Direction


def release_sentences(wave: WaveSettings, alias: str, topics: Iterable[str] | None = None) -> list[str]:
    """Return who starts at the cluster `alias`. `topics`: those that the wave still has, if these are not all."""
    groups = (
        [f"start the consumers of {shown(wave.groups)} at {alias}, with isolation.level=read_committed"] if wave.groups else []
    )
    return [*groups, f"point the writers of {shown(wave.topics) if topics is None else ', '.join(topics)} to {alias}"]


def shown(patterns: Iterable[str]) -> str:
    """Return patterns of topics or groups for a sentence: one that matches a single name as that name."""
    names = ((pattern, re.sub(r"\\(.)", r"\1", pattern)) for pattern in patterns)
    return ", ".join(name if re.escape(name) == pattern else pattern for pattern, name in names)


def abort_problem(state: WaveState) -> str:
    """Return why a wave cannot be aborted."""
    if not state.is_under_way:
        return f"wave {state.name} is {state.phase}: nothing is under way that could be aborted"
    way = "`shallow-mirror migrate rollback FILE`" if state.direction is Direction.MOVE else "a migration of its own"
    return (
        f"wave {state.name} has passed the point of no return: writers may have written to the other cluster, and records that "
        f"are only there would be lost. Finish it with `shallow-mirror migrate {_command(state)} FILE`; the way back is {way}"
    )


def late_writes_error(config: MigrationConfig, wave: str, left: str, other: str, late: Iterable[object]) -> LateWritesError:
    """Return the error for records that were written to `left`, the cluster that the wave has left for `other`."""
    return LateWritesError(wave, left, other, [str(write) for write in late], late_writes_command(config, wave))


def late_writes_command(config: MigrationConfig, wave: str) -> str:
    return f"shallow-mirror migrate late-writes {shlex.quote(config.path)} --wave {wave}"


def lost_sentence(write: object, left: str) -> str:
    """Return the sentence for late writes that were deleted before they were copied."""
    return f"{write}: LOST: deleted at {left} before they were copied"


def nothing_to_abort(waves: Iterable[WaveState]) -> str:
    """Return the phases of the waves, none of which is under way."""
    phases = "; ".join(
        f"wave {wave.name} is {wave.phase}" + (", `migrate rollback` brings it back" if wave.phase is Phase.MOVED else "")
        for wave in waves
    )
    return f"nothing is under way that could be aborted: {phases}"


def _command(state: WaveState) -> str:
    return "run" if state.direction is Direction.MOVE else "rollback"


def status_hint(mirror_file: str) -> str:
    return f"`shallow-mirror status {mirror_file}` shows what it waits for"


def not_running(mirror: str, run: MirrorRun | None) -> str:
    return f"the mirror {mirror} has not run yet" if run is None else f"{run.description} of the mirror {mirror} has ended"


def copies_deleted(topics: Iterable[str], alias: str) -> str:
    """Return that copies at `alias` were deleted while a wave waited: a check names what can be done."""
    return f"{named(sorted(topics))}: deleted at {alias}: the wave is checked again"
