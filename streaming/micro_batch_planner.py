"""Planner process: how far the next micro-batch goes and which slot takes what, over the life of a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import Retriable
from shallow_mirror.sinks import routing
from shallow_mirror.streaming import notes, planning
from shallow_mirror.streaming.broken_at_source import BrokenAtSource
from shallow_mirror.streaming.flow_control import FlowControl
from shallow_mirror.streaming.left_out import LeftOut, read_left_out
from shallow_mirror.streaming.plan_settings import PlanSettings
from shallow_mirror.streaming.planner import LogEnds, Planner
from shallow_mirror.streaming.planning import Offsets
from shallow_mirror.types import PlannedRange, SourcePartition

_log = logging.getLogger(__name__)

_PATIENCE_MS = 60_000.0
_PAUSE_S = 1.0
_TRUNCATION_CHECKS = 5


class MicroBatchPlanner:
    """State of the planner process over the life of a query: estimates, slots of last time, the available-now target."""

    def __init__(
        self,
        settings: PlanSettings,
        planner: Planner,
        *,
        parallelism: int,
        recorded: Offsets | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """`recorded`: positions in the offset map when the query begins. A Spark checkpoint further than that is led back."""
        self._settings, self._planner, self._parallelism = settings, planner, parallelism
        self._recorded: Offsets = recorded or {}
        self._clock, self._sleep, self._now_ms = clock, sleep, now_ms
        self._bytes_per_offset: dict[SourcePartition, float] = {}
        self._bytes_per_batch: float | None = None
        self._slots: dict[SourcePartition, int] = {}
        self._has_listed = False
        self._target: LogEnds | None = None
        self._is_available_now = False
        self._since_ms: int | None = None
        self._planned: tuple[float, float] | None = None
        self._copied: Mapping[str, int] | None = None
        self._broken = BrokenAtSource()
        self._held_since: float | None = None
        self._flow = FlowControl(settings.bytes_per_second, settings.topic_bytes_per_second, clock())

    def initial(self) -> dict[SourcePartition, int]:
        """Positions of a mirror or stream that has none. Raises Retriable, ConfigError."""
        deadline = self._deadline()
        listing = self._planner.log_ends(deadline)
        listing.require_answers()
        planning.require_topics(self._settings.required_topics, listing.topic_ids)
        return self._planner.starts_at_a_start(list(listing.ends), (), listing, deadline)

    def prepare_available_now(self) -> None:
        """Fix the end of the query. Raises Retriable: a query that must end has nothing to wait for otherwise."""
        self._is_available_now = True
        self._target = self._insist()

    def latest(self, start: Offsets) -> Offsets:
        """Where the next micro-batch ends; `start` while the source does not answer, or nothing may go yet. Raises DataLoss.

        New partitions enter at their log start, without a range; they move from the next plan on. With available-now, where
        a plan without anything new would end the query, it waits here until something may go.

        A partition that a micro-batch left out is led back to its position, without a range, while the others move; then it is
        kept out of plans until its next try.
        """
        behind, self._recorded = self._behind(start), {}
        if behind:
            return {**start, **behind}
        left_out = {one.source: one for one in read_left_out(self._settings.left_out_path) if one.source in start}
        back = {
            source: one.position
            for source, one in left_out.items()
            if one.position is not None and one.position < start[source]
        }
        current = {**start, **back} if back else start
        while True:
            planned, wait_s = self._latest(current, left_out, back)
            if wait_s == 0.0 or not self._is_available_now or planned != start:
                return planned
            self._sleep(min(wait_s, _PAUSE_S))

    def _behind(self, start: Offsets) -> Offsets:
        """Where a start or `recover --redo` removed rows that Spark has noted as done. A micro-batch without ranges leads it back
        there: otherwise nothing is planned before the source has something new."""
        behind = {one: at for one, at in self._recorded.items() if at < start.get(one, at)}
        if behind:
            _log.warning("%d partitions are planned again from their positions in the offset map", len(behind))
        return behind

    def _latest(
        self, start: Offsets, left_out: Mapping[SourcePartition, LeftOut], back: Collection[SourcePartition]
    ) -> tuple[Offsets, float]:
        """And how long nothing may go, where that keeps everything back. `back` are at their positions again, and stay there."""
        try:
            start, listing = self._checked(start)
            entering = listing.ends.keys() - start.keys()
            found = self._planner.starts_of(entering, listing, self._deadline(), is_first_run=False)
        except Retriable as error:
            self._note({}, waiting_for=error)
            return start, 0.0
        self._has_listed = True
        paused = notes.read_paused(self._settings.paused_path)
        ends = planning.moved(start, listing.ends)
        open_ends = {one: end for one, end in ends.items() if one.topic not in paused} if paused else ends
        broken = self._broken.after(listing, self._now_ms())
        held = {*back, *self._broken.held(left_out, listing, self._now_ms())}
        if held:
            open_ends = {one: end for one, end in open_ends.items() if one not in held}
        rate = self._learn(start, open_ends, listing)
        settings = self._settings
        budget = planning.budget_bytes(
            settings.micro_batch_bytes, rate, settings.transaction_timeout_ms, settings.commit_interval_ms
        )
        planned, wait_s = self._within_limits(start, open_ends, budget)
        size = sum(planning.estimated_bytes(start, {one: planned[one] for one in ends}, self._bytes_per_offset).values())
        self._planned = (self._clock(), size)
        caught_up = [one for one in left_out if one in start and listing.ends.get(one) == start[one]]
        self._note(ends, waiting_for=None, left_out=broken, caught_up=caught_up)
        if wait_s == 0.0 and not open_ends and held & ends.keys():
            wait_s = self._held_wait_s()
        return planning.merge_new(planned, found), wait_s

    def _held_wait_s(self) -> float:
        """With available-now a query ends where nothing is planned: what was left out is tried again for so long first."""
        self._held_since = self._held_since or self._clock()
        return _PAUSE_S if self._clock() - self._held_since < _PATIENCE_MS / 1000 else 0.0

    def _within_limits(self, start: Offsets, ends: Offsets, budget: int) -> tuple[Offsets, float]:
        if self._flow.is_limited:
            least_bytes = max(1.0, self._bytes_per_batch or 0.0)
            flow = self._flow.plan(
                start, ends, self._bytes_per_offset, budget, least_bytes=least_bytes, copied=self._copied, now=self._clock()
            )
            planned, wait_s = flow.ends, flow.wait_s
        else:
            planned, wait_s = planning.plan_ends(start, ends, self._bytes_per_offset, budget), 0.0
        if self._settings.micro_batch_offsets is not None:
            planned = planning.plan_ends(start, planned, dict.fromkeys(start, 1.0), self._settings.micro_batch_offsets)
        return planned, wait_s

    def ranges(self, start: Offsets, end: Offsets) -> tuple[PlannedRange, ...]:
        """Ranges of a micro-batch, also of one that an earlier process planned: then sizes are looked up, and
        topics that were excluded or deleted since are left out: positions are in the map, so nothing is lost by that."""
        rules = self._settings
        moving = {one: to for one, to in planning.moved(start, end).items() if to > start[one]}
        self._recorded = {one: at for one, at in self._recorded.items() if one not in moving}  # read from their positions anyway
        topics = {one.topic for one in moving}
        included = {name for name in topics if routing.is_included(name, rules.include, rules.exclude)}
        start = {one: start[one] for one in moving if one.topic in included}
        if not self._has_listed:
            try:
                listing = self._planner.log_ends(self._deadline())
                self._has_listed = True
                start = self._still_there(self._going_on(start, listing.topic_ids), listing.topic_ids)
                self._learn(start, planning.moved(start, listing.ends), listing)
            except Retriable as error:
                _log.warning("planning without a look at the source: %s", error)
        ranges = planning.plan_ranges(
            start,
            end,
            bytes_per_offset=self._bytes_per_offset,
            slots=self._settings.slots,
            slot_bytes=self._settings.slot_bytes,
            parallelism=self._parallelism,
            last=self._slots,
            bytes_per_batch=self._bytes_per_batch,
            request_bytes=self._settings.request_bytes,
        )
        self._slots.update({one.source: one.slot for one in ranges})
        return ranges

    def _checked(self, start: Offsets) -> tuple[Offsets, LogEnds]:
        """`start`, and log ends that agree with it. A new leader may answer low for a moment: asked again before it is
        DataLoss."""
        listing = self._target or (self._insist() if self._is_available_now else self._planner.log_ends(self._deadline()))
        for _ in range(_TRUNCATION_CHECKS):
            current = self._going_on(start, listing.topic_ids)  # every time: it may be created again in between
            if all(end > current[one] for one, end in planning.moved(current, listing.ends).items()):
                return current, self._target or listing
            self._sleep(_PAUSE_S)
            listing = self._planner.log_ends(self._deadline())
        current = self._going_on(start, listing.topic_ids)
        truncated = planning.truncated(current, listing.ends)
        if truncated and not self._settings.isolates:
            raise next(iter(truncated.values()))
        return current, (self._target or listing).without(truncated)

    def _going_on(self, start: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        """Where topics were created again: DataLoss, or, if the mirror may go on, the rest without them; they enter as new."""
        current = planning.of_current_topics(start, topic_ids)
        if current is not start and not self._settings.goes_on_after_data_loss:
            planning.require_same_topics(start, topic_ids)
        return current

    def _still_there(self, start: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        gone = sorted({one.topic for one in start} - topic_ids.keys())
        if gone:
            _log.warning("source topics that are gone are left out: %s", ", ".join(gone))
        return {one: at for one, at in start.items() if one.topic in topic_ids}

    def _insist(self) -> LogEnds:
        patience = Deadline.after_ms(_PATIENCE_MS, self._clock)
        while True:
            try:
                listing = self._planner.log_ends(self._deadline())
                if not patience.is_over():
                    listing.require_answers()
                return listing
            except Retriable as error:
                if patience.is_over():
                    raise
                self._note({}, waiting_for=error)
                self._sleep(_PAUSE_S)

    def _learn(self, start: Offsets, ends: Offsets, listing: LogEnds) -> float | None:
        """Take over what the driver measured, sample what nobody read yet; bytes per second, None at first."""
        measured = notes.read_measured(self._settings.measured_path)
        if measured is not None:
            self._bytes_per_offset.update(measured.bytes_per_offset)
            self._bytes_per_batch = measured.bytes_per_batch or self._bytes_per_batch
            self._copied = measured.copied
        unknown = {one: start[one] for one, end in ends.items() if end > start[one] and one not in self._bytes_per_offset}
        if unknown:
            self._bytes_per_offset.update(self._planner.sample(unknown, listing, self._deadline()))
        if measured is not None and measured.bytes_per_s is not None:
            return measured.bytes_per_s
        return self._own_rate()

    def _own_rate(self) -> float | None:
        """Planned bytes by the time since: too low when the query idled, never too high. So the plan that follows from it is no
        smaller than what tells a speed."""
        if self._planned is None or self._planned[1] < planning.LEAST_MICRO_BATCH_BYTES:
            return None
        at, size = self._planned
        least_ms = self._settings.commit_interval_ms
        least = 0.0 if least_ms is None else planning.LEAST_MICRO_BATCH_BYTES / least_ms * 1000
        return max(least, size / max(0.001, self._clock() - at))

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._settings.request_timeout_ms, self._clock)

    def _note(
        self,
        ends: Offsets,
        *,
        waiting_for: Retriable | None,
        left_out: Sequence[LeftOut] = (),
        caught_up: Sequence[SourcePartition] = (),
    ) -> None:
        now_ms = self._now_ms()
        self._since_ms = None if waiting_for is None else self._since_ms or now_ms
        note = notes.PlannerNote(
            at_ms=now_ms,
            waiting_for=None if waiting_for is None else str(waiting_for),
            since_ms=self._since_ms,
            error_name=None if waiting_for is None else waiting_for.error_name,
            ends=ends,
            left_out=tuple(one.document() for one in left_out),
            caught_up=tuple(caught_up),
        )
        try:
            notes.write_note(self._settings.note_path, note)
        except OSError as error:
            _log.warning("the planner's note was not written: %s", error)
