"""Driver, for the cli: plan of the waves that have not moved: steps, obstacles, durations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config.hook_settings import MigrationHook
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.deadline import request_deadline
from shallow_mirror.migration.blockers import notes_of
from shallow_mirror.migration.comparison_sample import MappedRow, choose_sample, comparison_s
from shallow_mirror.migration.estimate import Measured, StepTime, downtime_s, step_times
from shallow_mirror.migration.newest_row import NewestRow
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.permissions import UserView, missing_on_groups
from shallow_mirror.migration.sentences import shown
from shallow_mirror.migration.session import read_newest_state, read_state
from shallow_mirror.migration.state import Phase
from shallow_mirror.migration.steps import MOVE, Direction, Step, StepInfo
from shallow_mirror.operations.status import gather_status
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.types import TopicPartition

SAMPLE_BYTES = 1 << 20
"""Bytes that are read of each partition to measure the pace of reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    step: Step
    needs: str
    does: str
    leaves: str
    outside: str | None
    hooks: tuple[MigrationHook, ...]
    time: StepTime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWave:
    """`notes`: what a plan cannot know. `downtime_s`: how long the writers are stopped, without the time that people take;
    None: not known."""

    name: str
    phase: Phase
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    reverse: str | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    steps: tuple[PlannedStep, ...]
    downtime_s: float | None

    def document(self) -> dict[str, Any]:
        return {
            "wave": self.name,
            "phase": self.phase.value,
            "topics": list(self.topics),
            "groups": list(self.groups),
            "reverse": self.reverse,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "downtime_s": self.downtime_s,
            "steps": [
                {
                    "step": planned.step.value,
                    "needs": planned.needs,
                    "does": planned.does,
                    "leaves": planned.leaves,
                    "outside": planned.outside,
                    "hooks": [_hook_document(hook) for hook in planned.hooks],
                    "seconds": None if planned.time is None else planned.time.seconds,
                    "basis": None if planned.time is None else planned.time.basis,
                }
                for planned in self.steps
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPlan:
    migration: str
    origin: str
    other: str
    waves: tuple[PlannedWave, ...]

    @property
    def is_fine(self) -> bool:
        return not any(wave.problems for wave in self.waves)

    def document(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        fields = {"migration": self.migration, "origin": self.origin, "other": self.other, "is_fine": self.is_fine}
        return {**fields, "waves": [wave.document() for wave in self.waves]}


def plan_migration(
    files: MigrationFiles, clock: Callable[[], float] = time.monotonic, on_begun: Callable[[str], None] = lambda _: None
) -> MigrationPlan:
    """Return the plan. Changes nothing. `on_begun` receives the name of each wave.

    Raises ConfigError, RetriableError (a cluster does not answer).
    """
    config = files.config
    note_problems = _note_problems(files)
    state = read_state(files) if note_problems else read_newest_state(files)
    waves = []
    for wave in config.waves:
        phase = state.waves[wave.name].phase
        on_begun(wave.name)
        with closing(Passage(files, wave, Direction.MOVE)) as passage:
            waves.append(_planned_wave(passage, phase, clock, note_problems))
    mirror = files.mirror
    return MigrationPlan(migration=config.migration, origin=mirror.source.alias, other=mirror.target.alias, waves=tuple(waves))


def _note_problems(files: MigrationFiles) -> list[str]:
    """Return a sentence if the user may not read what the target notes of the migration's table."""
    mirror = files.mirror
    with closing(Cluster(mirror.target.client)) as cluster:
        reach(cluster, mirror.target_cluster_name, request_deadline())
        group = NewestRow(mirror, files.config.migration).group
        what_for = "needed to notice an older copy of the table"
        return list(missing_on_groups(UserView(cluster, mirror.target_cluster_name), [group], what_for))


def _planned_wave(passage: Passage, phase: Phase, clock: Callable[[], float], note_problems: Sequence[str]) -> PlannedWave:
    wave, is_open = passage.wave, phase is Phase.AT_SOURCE
    problems = note_problems
    times: Mapping[Step, StepTime] = {}
    if is_open:
        problems = [*note_problems, *passage.problems()]
        if not problems:
            measured, findings = _measure(passage, clock)
            problems, times = findings, step_times(measured)
    return PlannedWave(
        name=wave.name,
        phase=phase,
        topics=passage.topics(),
        groups=tuple(sorted(passage.group_offsets())) if is_open else tuple(wave.groups),
        reverse=wave.reverse,
        problems=tuple(problems),
        notes=tuple(notes_of(passage)) if is_open else (),
        steps=tuple(
            PlannedStep(
                step=info.step,
                needs=info.needs,
                does=info.does.format(other=passage.other_alias),
                leaves=info.leaves.format(other=passage.other_alias),
                outside=_outside(info, passage, wave),
                hooks=tuple(
                    hook for hook in passage.files.config.hooks if hook.direction != "rollback" and hook.place[1] == info.step
                ),
                time=times.get(info.step),
            )
            for info in MOVE
            if is_open
        ),
        downtime_s=downtime_s(times) if times else None,
    )


def _hook_document(hook: MigrationHook) -> dict[str, Any]:
    undo = None if hook.undo is None else str(hook.undo)
    return {"hook": hook.name, "when": hook.place[0], "calls": str(hook), "timeout_s": hook.timeout_s, "undo": undo}


def _outside(info: StepInfo, passage: Passage, wave: WaveSettings) -> str | None:
    """Return what somebody has to do elsewhere; None: nothing, or the wave has no groups or no reverse mirror."""
    if info.outside is None or (info.step is Step.STOP_GROUPS and not wave.groups):
        return None
    if info.step is Step.START_REVERSE and wave.reverse is None:
        return None
    return info.outside.format(
        mirror=passage.mirror.mirror,
        topics=", ".join(passage.topics()),
        groups=shown(wave.groups),
        origin=passage.origin_alias,
        other=passage.other_alias,
        reverse=wave.reverse,
    )


def _measure(passage: Passage, clock: Callable[[], float]) -> tuple[Measured, list[str]]:
    """Return measurements, and the obstacles that a preflight and a comparison of these topics found."""
    config = passage.mirror.model_copy(
        update={"topics": passage.mirror.topics.model_copy(update={"include": list(passage.wave.topics)})}
    )
    report = preflight_mirror(config, sample_bytes=SAMPLE_BYTES)
    problems = report.stops()
    if config.write.on_refused == "stop":
        problems += report.refusals()
    pace = report.paces[0] if report.paces else None
    sample = choose_sample(_mapped_rows(passage))
    compared = passage.compare(sample.after)
    if not compared.is_equal:
        problems += [f"the clusters differ: {sentence}" for sentence in compared.sentences]
    mapped = passage.mapped_ends()
    began = clock()
    passage.compare(mapped)
    compare_s = clock() - began
    began = clock()
    passage.move_groups(is_applied=False)
    return (
        Measured(
            backlog_s=0.0
            if not report.backlog.offsets
            else None
            if pace is None
            else pace.seconds_for(report.backlog.size_bytes),
            verify_s=comparison_s(sample, compared.seconds, compare_s),
            micro_batch_s=_micro_batch_s(passage),
            compare_s=compare_s,
            groups_s=clock() - began,
            trigger_s=config.trigger_s,
            quiet_s=passage.files.config.writers.quiet_s,
        ),
        problems,
    )


def _mapped_rows(passage: Passage) -> Iterator[MappedRow]:
    """Yield the settled rows of the topics as they are now; of older ones of the same names nothing is compared."""
    offset_map = OffsetMap.open(TableStorage(passage.mirror.table_location), mirror=passage.mirror.mirror)
    listed = passage.origin.metadata(list(passage.topics()), request_deadline()).topics
    ids = {name: topic.topic_id for name, topic in listed.items()}
    columns = ["source_topic", "source_topic_id", "source_partition", "source_start", "source_end", "target_end", "size_bytes"]
    for piece in offset_map.settled_pieces(columns=columns):
        for topic, topic_id, partition, start, end, target_end, size_bytes in zip(
            *(piece.column(name).to_pylist() for name in columns), strict=True
        ):
            if ids.get(topic) == topic_id:
                yield MappedRow(TopicPartition(topic, partition), start, end, target_end, size_bytes or 0)


def _micro_batch_s(passage: Passage) -> float | None:
    """Return the median of the last micro-batches; None if there is none."""
    micro_batches = gather_status(passage.mirror).micro_batches
    return statistics.median(done.seconds for done in micro_batches) if micro_batches else None
