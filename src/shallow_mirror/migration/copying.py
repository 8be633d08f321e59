"""Waits until the mirror has copied a wave: first nearly all of it, then the rest behind writers that have stopped."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shallow_mirror.migration.blocking_transactions import BlockingTransactions
from shallow_mirror.migration.conductor_ports import Clock, Detail, Effects, Reports
from shallow_mirror.migration.observations import LogEnds, MappedEnd, MirrorRun, lag_offsets, named, not_copied
from shallow_mirror.migration.point_of_no_return import wait_for_resume
from shallow_mirror.migration.sentences import copies_deleted, not_running, status_hint
from shallow_mirror.migration.steps import Step
from shallow_mirror.migration.waiting import Waiting
from shallow_mirror.plurals import counted
from shallow_mirror.types import TopicPartition

POLL_S = 0.2
"""Pause between two looks while writers are stopped; each is a few requests."""
SLOW_POLL_S = 1.0
CLOSE_S = 10.0
"""The mirror has caught up when it copies what the logs hold within this time and two micro-batches: in the one that is under
way, and in the next, with which the map says so."""
LOOK_S = 10.0
"""After this time of waiting, and each time again, the target is asked whether the tables of the mirror are older."""


class Copying:
    """Of one wave in one direction."""

    def __init__(self, effects: Effects, reports: Reports, waiting: Waiting, clock: Clock) -> None:
        self._effects, self._reports, self._waiting, self._clock = effects, reports, waiting, clock
        self._retried = waiting.retried
        self._older: str | None = None
        self._lost: Collection[str] = ()
        self._looked_at_s = 0.0

    def catch_up(self) -> Detail | Step:
        """Wait until the mirror copies soon all that was in the logs at a moment. Timestamps of records may be any."""
        blocking = self._begun()
        within_s = CLOSE_S + 2 * self._effects.micro_batch_s
        ends, listed_s = self._retried(self._effects.log_ends), self._clock.monotonic()
        while True:
            if moving := self._moving_topics():
                self._reports.says(f"{named(moving)}: handed over, and were not at the check: the mirror has other tables since")
                return Step.CHECK
            if self._has_lost_copies():
                return Step.CHECK
            run, mapped = self._retried(self._effects.run), self._retried(self._effects.mapped_ends)
            is_running, lag = run is not None and not run.is_over, lag_offsets(ends, mapped)
            # New partitions have no lag while they are empty, but nothing of them is copied before the mirror has found them.
            unregistered = sorted(ends.keys() - mapped.keys())
            took_s = self._clock.monotonic() - listed_s
            if is_running and lag == 0 and not unregistered and took_s <= within_s:
                return {"copied_within_s": round(took_s, 3)}
            # The mirror was too slow for these ends: it is measured with new ones.
            if took_s > within_s:
                ends, listed_s = self._retried(self._effects.log_ends), self._clock.monotonic()
            if is_running and took_s <= within_s:
                self._clock.sleep(POLL_S)
            elif not is_running:
                self._wait_for_start(f"start the mirror {self._effects.mirror_id}", run, SLOW_POLL_S)
            elif not self._is_held_up(blocking, ends, mapped, SLOW_POLL_S):
                new = f", not registered yet: {named(unregistered)}" if unregistered else ""
                seen = f"{counted(lag, 'offset')} left to copy{new}; {status_hint(self._effects.mirror_file)}"
                self._waiting.for_somebody(f"keep the mirror {self._effects.mirror_id} running", seen, SLOW_POLL_S)

    def copy_rest(self, stopped: Mapping[TopicPartition, int]) -> Detail | Step:
        request = f"keep the mirror {self._effects.mirror_id} running"
        blocking = self._begun()
        while True:
            ends = self._retried(self._effects.log_ends)
            if {name: log.end for name, log in ends.items()} != stopped:
                self._reports.says("the writers are not stopped: log ends have moved since")
                return Step.STOP_WRITERS
            # Positions behind log ends: if those are as the writers left them, all is copied once positions are there.
            mapped = self._retried(self._effects.mapped_ends)
            behind = not_copied(ends, mapped)
            if not behind:
                return {}
            # STOP_WRITERS has taken them back, in tables that are not in place any more.
            if self._moving_topics():
                self._waiting.owned(self._effects.resume)
            if self._has_lost_copies():
                return Step.CHECK
            run = self._retried(self._effects.run)
            is_running = run is not None and not run.is_over
            if not is_running:
                self._wait_for_start(request, run, POLL_S)
            elif not self._is_held_up(blocking, ends, mapped, POLL_S):
                seen = f"not copied: {named(behind)}; {status_hint(self._effects.mirror_file)}"
                self._waiting.for_progress(f"the mirror {self._effects.mirror_id} to copy", seen, POLL_S)

    def is_something_left(self) -> bool:
        """Say which partitions are not copied to their ends, although they were when the rest was copied."""
        left = not_copied(self._retried(self._effects.log_ends), self._retried(self._effects.mapped_ends))
        if left:
            self._reports.says(f"{named(left)}: not copied any more: records were written since, or the mirror has older tables")
        return bool(left)

    def _begun(self) -> BlockingTransactions:
        self._older, self._lost, self._looked_at_s = None, (), self._clock.monotonic()
        return BlockingTransactions(self._effects, self._waiting, self._clock)

    def _is_held_up(
        self, blocking: BlockingTransactions, ends: LogEnds, mapped: Mapping[TopicPartition, MappedEnd], pause_s: float
    ) -> bool:
        """Wait for `pause_s` if paused topics, transactions or older tables hold up a running mirror; otherwise return False."""
        if wait_for_resume(self._effects, self._waiting) or blocking.wait(ends, mapped, pause_s):
            return True
        return self._has_older_tables(pause_s)

    def _wait_for_start(self, request: str, run: MirrorRun | None, pause_s: float) -> None:
        if not self._has_older_tables(pause_s):
            self._waiting.for_somebody(request, not_running(self._effects.mirror_id, run), pause_s)

    def _has_older_tables(self, pause_s: float) -> bool:
        """Wait for `pause_s` if the mirror has older tables: none starts with them, and one without work does not notice it."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_at_s >= LOOK_S:
            self._older, self._looked_at_s = self._retried(self._effects.older_tables), now_s
            self._lost = self._retried(lambda: self._effects.lost_topics(self._effects.topics()))
        if self._older is not None:
            request = f"put the newest tables of the mirror {self._effects.mirror_id} in their place"
            self._waiting.for_somebody(request, self._older, pause_s)
        return self._older is not None

    def _has_lost_copies(self) -> bool:
        """Say which copies were deleted, by the last look: no waiting brings them back, and a check names what can be done."""
        if self._lost:
            self._reports.says(copies_deleted(self._lost, self._effects.other_alias))
        return bool(self._lost)

    def _moving_topics(self) -> list[str]:
        """Return the topics of the wave that are handed over, or to be handed over."""
        controls = self._retried(self._effects.controls)
        return sorted({*controls.requested, *controls.handed_over}.intersection(self._effects.topics()))
