"""Driver: a rehearsal: every step of a wave, and of its rollback, with scratch topics, scratch groups and mirrors of their own.

The same conductor performs the same steps; whoever acts outside is played by a writer that the rehearsal stops and starts. Real
topics, groups and mirrors are read only.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shallow_mirror import routing
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import ClusterSettings
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.groups.view import sentence
from shallow_mirror.migration.conductor_ports import Outside, Reports
from shallow_mirror.migration.mirror_process import StartedMirror
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.rehearsal import scratch as scratch_names
from shallow_mirror.migration.rehearsal.leftovers import Leftovers, remove, remove_all
from shallow_mirror.migration.rehearsal.scratch import Scratch
from shallow_mirror.migration.rehearsal.scratch_permissions import missing_permissions
from shallow_mirror.migration.rehearsal.scratch_writer import ScratchWriter, log_starts, read_sample
from shallow_mirror.migration.session import Options, owned, read_newest_state, require_sole, roll_back, run_migration
from shallow_mirror.migration.state import REHEARSED, REHEARSING, Phase
from shallow_mirror.migration.steps import Direction, Step

RUN_FOR = ("--for", "1800")
"""Scratch mirrors end by themselves, also if the rehearsal was killed."""
START_S = 180.0
TRAFFIC_S = 3.0
"""So long the scratch writer writes at the target before it moves back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalReport:
    """`seconds` of each step by direction, and how long the writer was stopped. `groups`: commits for the real ones. `left`:
    leftovers that could not be deleted."""

    wave: str
    seconds: Mapping[Direction, Mapping[Step, float]]
    writers_stopped_s: Mapping[Direction, float]
    groups: Sequence[str]
    left: Sequence[str]

    def document(self) -> dict[str, Any]:
        return {
            "wave": self.wave,
            "steps": [
                {"direction": direction.value, "step": step.value, "seconds": seconds}
                for direction, steps in self.seconds.items()
                for step, seconds in steps.items()
            ],
            "writers_stopped_s": {direction.value: seconds for direction, seconds in self.writers_stopped_s.items()},
            "groups": list(self.groups),
            "left": list(self.left),
        }

    def sentences(self) -> list[str]:
        lines = [f"rehearsal of wave {self.wave}: every step was performed with scratch topics and scratch groups"]
        for direction, steps in self.seconds.items():
            lines += [f"  {direction}: {step}: {seconds:.1f} s" for step, seconds in steps.items()]
            stopped_s = self.writers_stopped_s[direction]
            lines.append(
                f"  {direction}: the writers would be stopped for about {stopped_s:.1f} s, and the time that people take"
            )
        lines += [f"  group {line}" for line in self.groups]
        lines.append("  nothing is left of it" if not self.left else "  could not be deleted: " + ", ".join(self.left))
        return lines


@dataclass(slots=True)
class _Actor:
    """`Reports` of the scratch migration: follows the conductor, and measures.

    `places`: by alias, a cluster and the names of the scratch topics there. `mirrors`: those that were started so far.
    """

    writer: ScratchWriter
    mirrors: Sequence[StartedMirror]
    places: Mapping[str, tuple[ClusterSettings, Callable[[str], str]]]
    reports: Reports
    direction: Direction = Direction.MOVE
    seconds: dict[Direction, dict[Step, float]] = field(default_factory=dict)
    writers_stopped_s: dict[Direction, float] = field(default_factory=dict)

    def begun(self, wave: str, step: Step) -> None:
        self.reports.begun(self._name(wave), step)

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        self.seconds.setdefault(self.direction, {})[step] = detail["seconds"]
        if step is Step.POINT_OF_NO_RETURN:
            self.writers_stopped_s[self.direction] = detail["writers_stopped_s"]
        self.reports.done(self._name(wave), step, detail)

    def waits(self, outside: Outside) -> None:
        if outside.step is Step.STOP_WRITERS:
            self.writer.stop()
            return
        ended = [mirror for mirror in self.mirrors if not mirror.is_alive()]
        if ended:  # nobody starts it again
            raise RetriableError("REHEARSAL", f"{outside.step}: a scratch mirror has ended: {ended[0].last_words}")
        self.reports.waits(replace(outside, wave=self._name(outside.wave)))

    def _name(self, wave: str) -> str:
        return f"rehearsal of {wave}, {self.direction}"

    def says(self, text: str) -> None:
        if "NOW: point the writers" in text:
            self.writer.start(*self.places[text.rsplit(" ", 1)[1]])


def rehearse(files: MigrationFiles, reports: Reports, wave: str | None = None, options: Options = Options()) -> RehearsalReport:  # noqa: B008
    """Perform every step of a wave (default: the next one) in scratch, and delete all of it.

    Raises ConfigError with the obstacles of the real wave, or of the rehearsal.
    """
    state = read_newest_state(files)
    if state.under_way is not None:
        raise ConfigError(f"wave {state.under_way.name} is under way: rehearse before it begins, or after `migrate abort`")
    waiting = [each for each in files.config.waves if state.waves[each.name].phase is Phase.AT_SOURCE]
    chosen = next((each for each in waiting if wave in (None, each.name)), None)
    if chosen is None:
        raise ConfigError(
            "nothing to rehearse: " + ("all waves have moved" if wave is None else f"no wave {wave} that has not moved")
        )
    require_sole(state.conductor, options)
    with owned(files, state, options) as owner:
        left = remove_all(files, state.rehearsals, owner)
        with closing(Passage(files, chosen, Direction.MOVE)) as passage:
            problems = passage.problems()
            if problems:
                raise ConfigError(problems)
            prefix = f"{routing.REHEARSAL_PREFIX}{uuid.uuid4().hex[:8]}"
            folder = Path(tempfile.gettempdir()) / prefix
            leftovers = Leftovers(prefix=prefix, folder=str(folder), is_denied=files.config.writers.is_denied)
            scratch = Scratch(
                prefix=prefix,
                folder=folder,
                topics=passage.topics(),
                groups=sorted(passage.group_offsets()),
                target_name=files.mirror.topics.target_name,
                source_alias=files.mirror.source.alias,
            )
            problems = [*scratch.name_problems(), *missing_permissions(files, chosen, scratch)]
            if problems:
                raise ConfigError(problems)
            owner.append(event=REHEARSING, detail=leftovers.document())
            report = _Rehearsal(files, chosen, scratch, leftovers, passage, reports, options).run()
        if not report.left:
            owner.append(event=REHEARSED, detail=leftovers.document())
    return replace(report, left=[*left, *report.left])


class _Rehearsal:
    def __init__(
        self,
        files: MigrationFiles,
        wave: WaveSettings,
        scratch: Scratch,
        leftovers: Leftovers,
        passage: Passage,
        reports: Reports,
        options: Options,
    ) -> None:
        self._files = files
        self._wave = wave
        self._scratch = scratch
        self._leftovers = leftovers
        self._passage = passage
        self._reports = reports
        self._options = options
        self._started: list[StartedMirror] = []

    def run(self) -> RehearsalReport:
        groups = self._passage.move_groups(is_applied=False)
        origin, other = self._passage.origin_alias, self._passage.other_alias
        left: Sequence[str] = ()
        try:
            actor = self._perform()
        finally:
            left = self._remove()
        return RehearsalReport(
            wave=self._wave.name,
            seconds=actor.seconds,
            writers_stopped_s=actor.writers_stopped_s,
            groups=[] if groups is None else [sentence(group, origin, other) for group in groups.groups],
            left=left,
        )

    def _perform(self) -> _Actor:
        mirror, scratch = self._files.mirror, self._scratch
        ends = self._passage.log_ends()
        sample = read_sample(mirror.source, ends, log_starts(mirror.source, list(ends)))
        files = scratch_names.write_files(self._files, self._wave, scratch)
        scratch_names.create_topics(mirror, scratch)
        writer = ScratchWriter(sample)
        writer.fill(mirror.source, scratch.topic)
        with closing(Passage(files, files.config.waves[0], Direction.MOVE)) as copy:
            scratch_names.commit_groups(mirror, scratch, {name: log.end for name, log in copy.log_ends().items()})
        self._launch(scratch_names.mirror_file(scratch), scratch.folder / "mirror.log", ())
        self._reports.says(f"{self._wave.name}: waits for the scratch mirror to register its topics ...")
        self._await_positions(files)
        places = {mirror.source.alias: (mirror.source, scratch.topic), mirror.target.alias: (mirror.target, scratch.copy)}
        actor = _Actor(writer, self._started, places, self._reports)
        options = replace(self._options, launch=self._launch, waits=True)
        try:
            writer.start(*places[mirror.source.alias])
            run_migration(files, actor, options)
            if files.reverses:
                self._options.clock.sleep(TRAFFIC_S)
                actor.direction = Direction.ROLLBACK
                roll_back(files, actor, options=options)
        finally:
            writer.stop()
        return actor

    def _launch(self, file: str, log: Path, options: Sequence[str]) -> StartedMirror:
        started = self._options.launch(file, log, (*options, *RUN_FOR))
        self._started.append(started)
        return started

    def _await_positions(self, files: MigrationFiles) -> None:
        """Wait until the scratch mirror has registered its topics."""
        give_up_at = self._options.clock.monotonic() + START_S
        storage = TableStorage(files.mirror.table_location)
        while storage.offset_map.snapshot() is None or not OffsetMap.open(storage, mirror=files.mirror.mirror).positions():
            if self._options.clock.monotonic() > give_up_at:
                words = self._started[0].last_words
                raise RetriableError("REHEARSAL", f"the scratch mirror registered nothing within {START_S:.0f} s: {words}")
            self._options.clock.sleep(0.2)

    def _remove(self) -> list[str]:
        for started in self._started:
            started.stop()
        return remove(self._files, self._leftovers)
