"""The step behind which a wave cannot be aborted: it takes all evidence again, and passes on nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from shallow_mirror.config.migration_config import MigrationConfig
from shallow_mirror.migration.conductor_ports import Clock, Detail, Effects, Reports
from shallow_mirror.migration.evidence import Evidence, reopening
from shallow_mirror.migration.observations import named
from shallow_mirror.migration.sentences import copies_deleted, not_running, status_hint
from shallow_mirror.migration.steps import Step
from shallow_mirror.migration.waiting import Waiting
from shallow_mirror.types import TopicPartition

POLL_S = 0.2
RESUME_POLL_S = 1.0
LOOK_S = 10.0
"""How often it is looked, while the mirror has not confirmed, whether copies were deleted."""


class PointOfNoReturn:
    """Of one wave in one direction."""

    def __init__(self, config: MigrationConfig, effects: Effects, reports: Reports, waiting: Waiting, clock: Clock) -> None:
        self._config, self._effects, self._reports, self._waiting, self._clock = config, effects, reports, waiting, clock
        self._retried = waiting.retried

    def passed(self, done: Mapping[Step, Detail]) -> Detail | Step:
        """Return the evidence on which the wave has passed; or the step that has to be done again."""
        while True:
            lacking = self._await_hand_over()
            if lacking is not None:
                return lacking
            evidence = self._take_evidence()
            reopened = reopening(evidence, done)
            if reopened is not None:
                self._reports.says(reopened.reason)
                if reopened.step is Step.CHECK:
                    self._waiting.owned(self._effects.resume)  # a check finds no topic that is handed over
                return reopened.step
            # Its parts were read one after the other. Where a second look finds the same, all of it was so at one moment.
            if self._take_evidence() == evidence:
                return evidence.document()
            self._waiting.for_progress("clusters at rest", "something changed while it was looked at", POLL_S)

    def _await_hand_over(self) -> Step | None:
        """Wait until the mirror has confirmed it. Return the step to be done again if it never will."""
        mirror, topics = self._effects.mirror_id, set(self._effects.topics())
        looked_at_s = self._clock.monotonic()
        while True:
            controls = self._retried(self._effects.controls)
            if not topics <= controls.moving:
                return Step.HAND_OVER
            if self._clock.monotonic() - looked_at_s >= LOOK_S:
                looked_at_s = self._clock.monotonic()
                if lost := self._retried(lambda: self._effects.lost_topics(topics)):
                    self._reports.says(copies_deleted(lost, self._effects.other_alias))
                    self._waiting.owned(self._effects.resume)  # a check finds no topic that is handed over
                    return Step.CHECK
            if topics & controls.paused.keys():
                wait_for_resume(self._effects, self._waiting)
            elif topics <= controls.handed_over.keys():
                return None
            elif (run := self._retried(self._effects.run)) is None or run.is_over:
                request = f"keep the mirror {mirror} running: it confirms within seconds that it has handed over"
                self._waiting.for_somebody(request, not_running(mirror, run), POLL_S)
            else:
                seen = f"{run.description}; {status_hint(self._effects.mirror_file)}"
                self._waiting.for_progress(f"the mirror {mirror} to confirm the hand-over", seen, POLL_S)

    def _take_evidence(self) -> Evidence:
        effects, retried = self._effects, self._retried
        other_ends = retried(effects.other_log_ends)
        origin_ends = retried(effects.log_ends)
        copies = {TopicPartition(effects.target_topic(name.topic), name.partition) for name in origin_ends}
        return Evidence(
            topics=tuple(retried(effects.listed_topics)),
            active_groups=tuple(retried(effects.active_groups)),
            missing_deny_count=len(retried(effects.missing_denies)) if self._config.writers.is_denied else 0,
            groups=retried(lambda: effects.move_groups(is_applied=False)),
            origin_ends=origin_ends,
            other_ends=other_ends,
            only_at_other=() if effects.reverse_file is None else tuple(sorted(other_ends.keys() - copies)),
            mapped=retried(effects.mapped_ends),
        )


def wait_for_resume(effects: Effects, waiting: Waiting) -> bool:
    """Wait a moment for whoever has paused topics of the wave. Return False if none is paused."""
    paused = sorted(waiting.retried(effects.controls).paused.keys() & set(effects.topics()))
    if paused:
        command = f"shallow-mirror resume {effects.mirror_file} {' '.join(paused)}"
        waiting.for_somebody(f"resume what was paused: `{command}`", f"paused: {named(paused)}", RESUME_POLL_S)
    return bool(paused)
