"""Driver: a conductor: it takes over a migration, performs, aborts or rolls back its waves, and says that it has ended."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs import MigrationLog, MigrationOwner
from shallow_mirror.checkpoints.rows import ENDED, MigrationRow
from shallow_mirror.checkpoints.tables import TableLocation, TableStorage
from shallow_mirror.config.hook_settings import Hook
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.errors import ConfigError, FencedError, MirrorError
from shallow_mirror.migration.conductor import WaveConductor
from shallow_mirror.migration.conductor_ports import Clock, Reports
from shallow_mirror.migration.late_writes import LateWrite, Passed, find_late_writes, settled_writes
from shallow_mirror.migration.mirror_process import Launch, start_process
from shallow_mirror.migration.newest_row import NewestRow
from shallow_mirror.migration.observations import from_document
from shallow_mirror.migration.open_transactions import OpenTransaction, find_open_transactions
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.rehearsal.leftovers import remove_all
from shallow_mirror.migration.sentences import abort_problem, late_writes_error, nothing_to_abort
from shallow_mirror.migration.state import ConductorState, MigrationState, Phase, WaveState, state_of
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.processes import is_process
from shallow_mirror.sinks.kafka import GROUP_SUFFIX
from shallow_mirror.verify import OnProgress, ignore_progress

SYSTEM_CLOCK = Clock(monotonic=time.monotonic, sleep=time.sleep, now_ms=lambda: int(time.time() * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`waits`: for somebody outside. `takes_over`: also from a conductor that may be alive. `launch` starts reverse mirrors.

    `on_progress` receives the progress of comparisons. `skipped_hooks`: names of hooks that count as done.
    `command`: the one that continues, where it is none of `migrate`.
    """

    waits: bool = True
    takes_over: bool = False
    clock: Clock = SYSTEM_CLOCK
    launch: Launch = start_process
    on_progress: OnProgress = ignore_progress
    skipped_hooks: frozenset[str] = frozenset()
    command: str | None = None

    def require_hooks(self, hooks: Iterable[Hook]) -> None:
        """Raise ConfigError for names of hooks that the file does not have."""
        unknown = self.skipped_hooks - {hook.name for hook in hooks}
        if unknown:
            raise ConfigError([f"--skip-hook {name}: there is no hook of this name" for name in sorted(unknown)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """`wave` None: none was under way. `rehearsals`: prefixes of those that were removed; `left`: what could not be deleted.

    `taken_back`: topics that were still handed over by attempts that had been aborted.
    """

    wave: WaveState | None
    rehearsals: Sequence[str]
    left: Sequence[str]
    taken_back: Sequence[str] = ()


def read_state(files: MigrationFiles) -> MigrationState:
    """Return the state of the migration. Raises ConfigError, OffsetMapConflictError."""
    return state_of(_rows(files), [wave.name for wave in files.config.waves])


def read_newest_state(files: MigrationFiles) -> MigrationState:
    """Return the state of the migration. Raises as `read_state`; ConfigError where the table is an older copy, RetriableError."""
    rows = NewestRow(files.mirror, files.config.migration).require_in(lambda: _rows(files))
    return state_of(rows, [wave.name for wave in files.config.waves])


def _rows(files: MigrationFiles) -> Sequence[MigrationRow]:
    return MigrationLog.open(TableStorage(files.config.table_location), files.config.migration).rows()


def require_wave(files: MigrationFiles, state: MigrationState, name: str | None) -> None:
    """Raise ConfigError if a command names a wave that the file does not have; None: it names none."""
    waves = [wave.name for wave in files.config.waves]
    if name is None or name in waves:
        return
    if name in state.waves:
        files.wave(name)  # the file had it, and has to have it again
    raise ConfigError(f"--wave {name}: the migration file has no wave of this name; it has {', '.join(waves)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LateWrites:
    """Of one wave. `open_transactions`: their records are late writes once they commit. `problem`: why they are not known."""

    writes: Sequence[LateWrite] = ()
    open_transactions: Sequence[OpenTransaction] = ()
    problem: str | None = None

    @property
    def is_none(self) -> bool:
        return not self.writes and not self.open_transactions and self.problem is None


def read_late_writes(files: MigrationFiles, state: MigrationState) -> dict[str, LateWrites]:
    """Return the late writes of each wave that are not settled, by asking the clusters."""
    found = dict[str, LateWrites]()
    for name, of_wave in state.waves.items():
        if Passed.of(of_wave) is None:
            found[name] = LateWrites()
            continue
        try:
            wave = files.wave(name)
            # First: what commits in between is found below.
            is_open = find_open_transactions(files, wave, of_wave)
            found[name] = LateWrites(writes=find_late_writes(files, wave, of_wave), open_transactions=is_open)
        except MirrorError as error:
            found[name] = LateWrites(problem=str(error))
    return found


def run_migration(files: MigrationFiles, reports: Reports, options: Options = Options()) -> MigrationState:
    """Move every wave that has not moved, one after the other. Safe to call again after any error.

    Raises ConfigError before anything is done (what is in the way, another conductor, files that were changed), and
    WaitsForOutsideError, FencedError, CopiesDifferError in between.
    """
    options.require_hooks(files.config.hooks)
    state = read_newest_state(files)
    _require_named(files, state)
    returning = next((wave for wave in state.waves.values() if wave.phase is Phase.RETURNING), None)
    if returning is not None:
        raise ConfigError(f"wave {returning.name} is rolling back: finish that with `shallow-mirror migrate rollback FILE`")
    pending = [wave for wave in files.config.waves if state.waves[wave.name].phase in (Phase.AT_SOURCE, Phase.MOVING)]
    if not pending:
        if returned := [wave.name for wave in state.waves.values() if wave.phase is Phase.RETURNED]:
            raise ConfigError(
                [
                    f"wave {name} was rolled back: it cannot move again with these mirrors. {_registered(files, name)}Mirror its "
                    "topics into new ones, with another mirror id, tables and checkpoint, and move it by another migration file"
                    for name in returned
                ]
            )
        return state
    pending.sort(key=lambda wave: state.waves[wave.name].phase is not Phase.MOVING)
    _require_ready(files, state, pending[0], Direction.MOVE, options)
    with owned(files, state, options) as owner:
        for wave in pending:
            if wave is not pending[0]:
                _require_ready(files, read_state(files), wave, Direction.MOVE, options)
            _perform(files, wave, Direction.MOVE, owner, reports, options)
    return read_state(files)


def _registered(files: MigrationFiles, wave: str) -> str:
    """Return what is to be done first about the mirror that has filled the source's topics: their copies count as a cycle."""
    reverse = files.reverses.get(wave)
    if reverse is None:
        return ""
    group, source = f"{reverse.mirror}{GROUP_SUFFIX}", files.mirror.source.alias
    return f"Stop mirror {reverse.mirror} for good and delete its consumer group {group} at {source}. "


def roll_back(files: MigrationFiles, reports: Reports, wave: str | None = None, options: Options = Options()) -> MigrationState:
    """Bring the waves that have moved back, the last one first; only `wave` if it is given. Raises as `run_migration`."""
    options.require_hooks(files.config.hooks)
    state = read_newest_state(files)
    _require_named(files, state)
    moving = state.under_way
    if moving is not None and moving.phase is Phase.MOVING:
        raise ConfigError(
            f"wave {moving.name} is moving: "
            + ("`migrate abort` goes back" if moving.can_abort else "finish it with `migrate run`")
        )
    phases = (Phase.MOVED, Phase.RETURNING)
    chosen = [each for each in reversed(files.config.waves) if state.waves[each.name].phase in phases]
    if wave is not None:
        chosen = [each for each in chosen if each.name == wave]
    named = [each for each in files.config.waves if wave in (None, each.name)]
    if not chosen and any(state.waves[each.name].phase is Phase.RETURNED for each in named):
        return state  # the last call was killed behind its last step
    if not chosen:
        raise ConfigError(f"nothing to roll back: {'no wave has' if wave is None else f'wave {wave} has not'} moved")
    lacking = [each.name for each in chosen if each.reverse is None]
    if lacking:
        raise ConfigError([f"wave {name} names no reverse mirror: there is no rollback" for name in lacking])
    chosen.sort(key=lambda each: state.waves[each.name].phase is not Phase.RETURNING)
    _require_ready(files, state, chosen[0], Direction.ROLLBACK, options)
    with owned(files, state, options) as owner:
        for each in chosen:
            _perform(files, each, Direction.ROLLBACK, owner, reports, options)
    return read_state(files)


def abort(files: MigrationFiles, reports: Reports, options: Options = Options(), *, is_replaced: bool = False) -> Aborted:
    """Take back what the wave under way has done, and remove what killed rehearsals left.

    Where nothing is under way, topics are taken back that an aborted attempt has handed over: the tables of the mirror that were
    in place at that abort were others. Raises ConfigError behind the point of no return, and where there is nothing to do.
    `is_replaced`: as `WaveConductor.abort`.
    """
    options.require_hooks(files.config.hooks)
    state = read_newest_state(files)
    wave = state.under_way
    kept = {} if wave is not None else _kept_hand_overs(files, state, options)
    if wave is None and not state.rehearsals and not kept:
        raise ConfigError(nothing_to_abort(state.waves.values()))
    if wave is not None and not wave.can_abort:
        raise ConfigError(abort_problem(wave))
    require_sole(state.conductor, options)
    settings = None if wave is None else files.wave(wave.name)
    with owned(files, state, options) as owner:
        if wave is not None and settings is not None:
            with closing(_passage(files, settings, state, wave.direction, options)) as passage:
                conductor = _conductor(files, settings, owner, passage, reports, replace(options, waits=False))
                conductor.abort(is_replaced=is_replaced)
                wave = conductor.state()
        for name, topics in kept.items():
            with closing(_passage(files, files.wave(name), state, _next_direction(state.waves[name]), options)) as passage:
                passage.use_topics(topics)
                passage.resume()
        left = remove_all(files, state.rehearsals, owner)
    return Aborted(
        wave=wave,
        rehearsals=[rehearsal["prefix"] for rehearsal in state.rehearsals],
        left=left,
        taken_back=[topic for topics in kept.values() for topic in topics],
    )


def _kept_hand_overs(files: MigrationFiles, state: MigrationState, options: Options) -> dict[str, Sequence[str]]:
    """Return the topics, by wave, that are handed over since an attempt that was aborted."""
    kept: dict[str, Sequence[str]] = {}
    for wave in files.config.waves:
        of_wave = state.waves[wave.name]
        direction = _next_direction(of_wave)
        attempts = of_wave.aborted.get(direction, ())
        if attempts and (direction is Direction.MOVE or wave.reverse is not None):
            # Of a wave that is back, the attempt behind those has handed over.
            is_back = of_wave.phase is Phase.RETURNED
            conductors = {(row.host, row.pid) for row in _rows(files) if row.wave == wave.name and not is_back}
            with closing(_passage(files, wave, state, direction, options)) as passage:
                if topics := passage.handed_over_within(attempts, conductors):
                    kept[wave.name] = topics
    return kept


def _require_named(files: MigrationFiles, state: MigrationState) -> None:
    """Raise ConfigError if the file does not have the wave under way: under another name its topics would move once more."""
    if state.under_way is not None:
        files.wave(state.under_way.name)


def _next_direction(wave: WaveState) -> Direction:
    return Direction.MOVE if wave.phase is Phase.AT_SOURCE else Direction.ROLLBACK


def _perform(
    files: MigrationFiles,
    wave: WaveSettings,
    direction: Direction,
    owner: MigrationOwner,
    reports: Reports,
    options: Options,
) -> None:
    state = state_of(owner.rows(), [each.name for each in files.config.waves])
    with closing(_passage(files, wave, state, direction, options)) as passage:
        conductor = _conductor(files, wave, owner, passage, reports, options)
        conductor.begin(direction)
        conductor.run()


def _conductor(
    files: MigrationFiles, wave: WaveSettings, owner: MigrationOwner, passage: Passage, reports: Reports, options: Options
) -> WaveConductor:
    return WaveConductor(
        files.config,
        wave,
        owner,
        passage,
        reports,
        options.clock,
        waits=options.waits,
        skipped_hooks=options.skipped_hooks,
        command=options.command,
    )


def _passage(files: MigrationFiles, wave: WaveSettings, state: MigrationState, direction: Direction, options: Options) -> Passage:
    of_wave = state.waves[wave.name]
    passed = of_wave.move.get(Step.POINT_OF_NO_RETURN, {})
    return Passage(
        files,
        wave,
        direction,
        boundary=from_document(passed.get("other_ends", {})),
        copied_by_move=from_document(passed.get("origin_ends", {})),
        moved_topics=frozenset(passed.get("other_ends", {})),
        known_late_writes=settled_writes(of_wave, Direction.MOVE) if direction is Direction.ROLLBACK else (),
        are_writers_denied_at_other=direction is Direction.ROLLBACK and bool(of_wave.denied.get(Direction.MOVE)),
        launch=options.launch,
        on_progress=options.on_progress,
    )


def _require_ready(
    files: MigrationFiles, state: MigrationState, wave: WaveSettings, direction: Direction, options: Options
) -> None:
    """Raise ConfigError with everything that is in the way, before anything is written."""
    require_sole(state.conductor, options)
    of_wave = state.waves[wave.name]
    if of_wave.is_under_way:
        if of_wave.fingerprint != files.fingerprint:
            what = "migration" if options.command is None else "failover"
            instead = ", or `migrate abort` first" if options.command is None and of_wave.can_abort else ""
            raise ConfigError(
                f"the {what} file, or a mirror file that it names, was changed while wave {wave.name} is under way "
                f"(fingerprint {of_wave.fingerprint} became {files.fingerprint}): undo the change{instead}"
            )
        return
    with closing(_passage(files, wave, state, direction, options)) as passage:
        if direction is Direction.ROLLBACK and (late := passage.late_writes(of_wave)):
            raise late_writes_error(files.config, wave.name, passage.other_alias, passage.origin_alias, late)
        problems = passage.problems()
    if problems:
        raise ConfigError(problems)


def require_sole(conductor: ConductorState | None, options: Options) -> None:
    """Raise ConfigError if another conductor is alive, or may be."""
    if conductor is None or conductor.has_ended or options.takes_over:
        return
    if conductor.host != socket.gethostname():
        raise ConfigError(
            f"{conductor} has not ended, and whether it is alive is unknown here: end it, or fence it with --take-over"
        )
    if conductor.pid != os.getpid() and is_process(conductor.pid):
        raise ConfigError(f"{conductor} is running: end it first (Ctrl-C), or give --take-over, which fences it")


@contextmanager
def owned(files: MigrationFiles, state: MigrationState, options: Options) -> Iterator[MigrationOwner]:
    """Own the migration for the block; its end is recorded unless the process is killed or fenced.

    Raises ConfigError if another conductor has begun since `state` was read, and may be alive.
    """
    newest = NewestRow(files.mirror, files.config.migration)
    # The checks in between take up to a minute.
    if (now := read_state(files).conductor) != state.conductor:
        require_sole(now, options)
    with owned_log(files.config.table_location, newest, files.fingerprint, options.clock) as owner:
        yield owner


@contextmanager
def owned_log(location: TableLocation, newest: NewestRow, fingerprint: str, clock: Clock) -> Iterator[MigrationOwner]:
    """Own the steps in the tables at `location` for the block, as `owned`. `newest`: of the migration or fail-over.

    Raises ConfigError where these tables are older than others that were used.
    """
    storage = TableStorage(location)
    storage.require_conditional_writes()
    log = MigrationLog.open(storage, newest.name)
    newest.require_in(log.rows)
    owner = log.take_over(RunIdentity.of_this_process(), fingerprint, clock.now_ms, newest.note)
    try:
        yield owner
    except FencedError:
        raise
    except BaseException:
        owner.append(event=ENDED)
        raise
    owner.append(event=ENDED)
