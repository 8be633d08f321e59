"""Planner process: how far the next micro-batch goes and which slot takes what, over the life of a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import routing
from shallow_mirror.streaming.planning import offset_planning, planner_state
from shallow_mirror.streaming.planning.left_out_partitions import LeftOut, read_left_out
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.streaming.planning.planner_config import PlanSettings
from shallow_mirror.streaming.planning.rate_limiter import FlowControl
from shallow_mirror.streaming.planning.source_availability import BrokenAtSource
from shallow_mirror.streaming.planning.source_offsets import LogEnds, Planner
from shallow_mirror.types import PlannedRange, SourcePartition

_log = logging.getLogger(__name__)

_PATIENCE_MS = 60_000.0
_PAUSE_S = 1.0
_TRUNCATION_CHECKS = 5
_REGISTRATION_PATIENCE_S = 120.0
"""Longer than an attempt of the driver may take. A driver that does not see the notes of this process is noticed by it."""

WARN_AFTER_S, WARN_EVERY_S = 10.0, 60.0
"""How long the source does not answer before a stream without notes says so, and how often it says it again."""


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
        self._registered: dict[SourcePartition, int] = dict(self._recorded)
        self._newly_registered: dict[SourcePartition, int] = {}
        self._unregistered_since: dict[SourcePartition, float] = {}
        self._clock, self._sleep, self._now_ms = clock, sleep, now_ms
        self._bytes_per_offset: dict[SourcePartition, float] = {}
        self._bytes_per_batch: float | None = None
        self._slots: dict[SourcePartition, int] = {}
        self._has_listed = False
        self._target: LogEnds | None = None
        self._is_available_now = False
        self._since_ms: int | None = None
        self._silent_since_s: float | None = None
        self._warned_at_s: float | None = None
        self._planned: tuple[float, float] | None = None
        self._copied: Mapping[str, int] | None = None
        self._broken = BrokenAtSource()
        self._held_since: float | None = None
        self._truncated: frozenset[SourcePartition] = frozenset()
        """Known to end below their positions: not looked at several times again."""
        self._flow = FlowControl(settings.bytes_per_second, settings.topic_bytes_per_second, clock())

    def initial(self) -> dict[SourcePartition, int]:
        """Positions of a mirror or stream that has none. Raises RetriableError, ConfigError."""
        deadline = self._deadline()
        listing = self._planner.log_ends(deadline)
        listing.require_answers()
        offset_planning.require_topics(self._settings.required_topics, listing.topic_ids)
        return self._planner.starts_at_a_start(list(listing.ends), (), listing, deadline)

    def prepare_available_now(self) -> None:
        """Fix the end of the query. Raises RetriableError: a query that must end has nothing to wait for otherwise.

        What appeared after the driver's start is not part of it: to wait for its registration would delay the end.
        """
        self._is_available_now = True
        listing = self._insist()
        if self._settings.registration is not None:
            listing = replace(listing, ends={one: end for one, end in listing.ends.items() if one in self._registered})
        self._target = listing

    def latest(self, start: Offsets) -> Offsets:
        """Where the next micro-batch ends; `start` while the source does not answer, or nothing may go yet. Raises DataLossError.

        With `on_data_loss: continue` a partition whose log ends below its position stays there until the log reaches it again.

        New partitions enter without a range: at their log start, or where the driver has registered them; they move from the
        next plan on. With available-now, where a plan without anything new would end the query, it waits here until something
        may go. Raises RetriableError where new partitions cannot be registered.

        A partition that a micro-batch left out is led back to its position, without a range, while the others move; then it is
        kept out of plans until its next try.
        """
        behind, self._recorded = self._behind(start), {}
        if behind:
            return {**start, **behind}
        left_out = {one.source: one for one in read_left_out(self._settings.left_out_path) if one.source in start}
        back = {
            source: one.position for source, one in left_out.items() if one.position is not None and one.position < start[source]
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
            _log.warning("planned again from their positions in the offset map: %s", counted(len(behind), "partition"))
        return behind

    def _latest(
        self, start: Offsets, left_out: Mapping[SourcePartition, LeftOut], back: Collection[SourcePartition]
    ) -> tuple[Offsets, float]:
        """And how long nothing may go, where that keeps everything back. `back` are at their positions again, and stay there."""
        try:
            start, listing = self._checked(start)
            seen = self._planner.starts_of(self._unregistered(start, listing), listing, self._deadline(), is_first_run=False)
        except RetriableError as error:
            self._note({}, waiting_for=error)
            return start, 0.0
        self._has_listed = True
        entering = self._entering(start, listing, seen)
        paused = planner_state.read_paused(self._settings.paused_path)
        ends = offset_planning.moved(start, self._plannable(listing.ends))
        open_ends = {one: end for one, end in ends.items() if one.topic not in paused} if paused else ends
        broken = self._broken.after(listing, self._now_ms())
        held = {*back, *self._broken.held(left_out, listing, self._now_ms())}
        if held:
            open_ends = {one: end for one, end in open_ends.items() if one not in held}
        rate = self._learn(start, open_ends, listing)
        settings = self._settings
        budget = offset_planning.budget_bytes(
            settings.micro_batch_bytes, rate, settings.transaction_timeout_ms, settings.commit_interval_ms
        )
        planned, wait_s = self._within_limits(start, open_ends, budget)
        size = sum(offset_planning.estimated_bytes(start, {one: planned[one] for one in ends}, self._bytes_per_offset).values())
        self._planned = (self._clock(), size)
        caught_up = [one for one in left_out if one in start and listing.ends.get(one) == start[one]]
        self._note(ends, waiting_for=None, left_out=broken, caught_up=caught_up)
        if wait_s == 0.0 and not open_ends and held & ends.keys():
            wait_s = self._held_wait_s()
        return ({**planned, **entering} if entering else planned), wait_s

    def _unregistered(self, start: Offsets, listing: LogEnds) -> Collection[SourcePartition]:
        """Partitions whose first offset is asked for: new ones, and where registration is required all that lack it.

        A mirror plans only what the driver has registered: what Spark's log of plans names and the offset map does not would
        begin elsewhere after a crash, for `topics.start` holds for what the map does not know at a start.
        """
        exchange = self._settings.registration
        if exchange is None:
            return listing.ends.keys() - start.keys()
        if self._target is not None:
            return ()
        unregistered = listing.ends.keys() - self._registered.keys()
        registered = exchange.read_registered() if unregistered else {}
        newly = {one: registered[one] for one in unregistered if one in registered}
        self._registered |= newly
        self._newly_registered |= newly  # kept until a plan takes them in: this one may still fail
        return unregistered - newly.keys()

    def _entering(self, start: Offsets, listing: LogEnds, seen: Offsets) -> Offsets:
        """Where partitions enter the plan. Raises RetriableError where the driver cannot be asked, or does not answer.

        What has just been registered may be in `start` already: an older plan named it, and it is led to its position.
        """
        exchange = self._settings.registration
        if exchange is None:
            return seen
        if seen or self._unregistered_since:
            self._ask_for_registration(exchange, seen)
        entering = {one: self._registered[one] for one in listing.ends.keys() - start.keys() if one in self._registered}
        newly, self._newly_registered = self._newly_registered, {}
        return {**entering, **newly}

    def _ask_for_registration(self, exchange: planner_state.RegistrationNotes, seen: Offsets) -> None:
        """Written anew with every plan: the driver may have missed the note before."""
        if seen and not self._unregistered_since:
            _log.info("%d new partitions are planned once the offset map holds their first row", len(seen))
        now = self._clock()
        self._unregistered_since = {partition: self._unregistered_since.get(partition, now) for partition in seen}
        for partition, since in self._unregistered_since.items():
            if now - since > _REGISTRATION_PATIENCE_S:
                # The query begins again, and the driver registers what it finds: also where it cannot see these files.
                raise RetriableError("NOT_REGISTERED", f"the driver does not register {partition.topic_partition}, which is new")
        try:
            exchange.write_seen(seen)
        except OSError as error:
            raise RetriableError("NOTE_NOT_WRITTEN", f"new partitions cannot be registered: {error}") from error

    def _plannable(self, ends: Offsets) -> Offsets:
        """Those that are registered, where registration is required."""
        if self._settings.registration is None or ends.keys() <= self._registered.keys():
            return ends
        return {one: end for one, end in ends.items() if one in self._registered}

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
            planned, wait_s = offset_planning.plan_ends(start, ends, self._bytes_per_offset, budget), 0.0
        if self._settings.micro_batch_offsets is not None:
            planned = offset_planning.plan_ends(start, planned, dict.fromkeys(start, 1.0), self._settings.micro_batch_offsets)
        return planned, wait_s

    def ranges(self, start: Offsets, end: Offsets) -> tuple[PlannedRange, ...]:
        """Ranges of a micro-batch, also of one that an earlier process planned: then sizes are looked up, and
        topics that were excluded or deleted since are left out: positions are in the map, so nothing is lost by that."""
        rules = self._settings
        moving = {one: to for one, to in self._plannable(offset_planning.moved(start, end)).items() if to > start[one]}
        self._recorded = {one: at for one, at in self._recorded.items() if one not in moving}  # read from their positions anyway
        topics = {one.topic for one in moving}
        included = {name for name in topics if routing.is_included(name, rules.include, rules.exclude)}
        start = {one: start[one] for one in moving if one.topic in included}
        if not self._has_listed:
            try:
                listing = self._planner.log_ends(self._deadline())
                self._has_listed = True
                start = self._still_there(self._going_on(start, listing.topic_ids), listing.topic_ids)
                self._learn(start, offset_planning.moved(start, listing.ends), listing)
            except RetriableError as error:
                _log.warning("planning without a look at the source: %s", error)
        ranges = offset_planning.plan_ranges(
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
        DataLossError."""
        listing = self._target or (self._insist() if self._is_available_now else self._planner.log_ends(self._deadline()))
        for _ in range(_TRUNCATION_CHECKS):
            current = self._going_on(start, listing.topic_ids)  # every time: it may be created again in between
            truncated = offset_planning.truncated(current, listing.ends)
            if truncated.keys() <= self._truncated:
                break
            self._sleep(_PAUSE_S)
            listing = self._planner.log_ends(self._deadline())
        current = self._going_on(start, listing.topic_ids)
        truncated = offset_planning.truncated(current, listing.ends)
        if truncated and not (self._settings.isolates or self._settings.continues_after_data_loss):
            raise next(iter(truncated.values()))
        self._truncated = frozenset(truncated)
        return current, (self._target or listing).without(truncated)

    def _going_on(self, start: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        """Where topics were created again: DataLossError, or, if the mirror may go on, the rest without them; they enter as
        new.
        """
        current = offset_planning.of_current_topics(start, topic_ids)
        if current is not start and not self._settings.continues_after_data_loss:
            offset_planning.require_same_topics(start, topic_ids)
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
            except RetriableError as error:
                if patience.is_over():
                    raise
                self._note({}, waiting_for=error)
                self._sleep(_PAUSE_S)

    def _learn(self, start: Offsets, ends: Offsets, listing: LogEnds) -> float | None:
        """Take over what the driver measured, sample what nobody read yet; bytes per second, None at first."""
        measured = planner_state.read_measured(self._settings.measured_path)
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
        if self._planned is None or self._planned[1] < offset_planning.LEAST_MICRO_BATCH_BYTES:
            return None
        at, size = self._planned
        least_ms = self._settings.commit_interval_ms
        least = 0.0 if least_ms is None else offset_planning.LEAST_MICRO_BATCH_BYTES / least_ms * 1000
        return max(least, size / max(0.001, self._clock() - at))

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._settings.request_timeout_ms, self._clock)

    def _warn(self, waiting_for: RetriableError | None) -> None:
        """Log what is waited for where nobody reads notes: Spark passes the planner's standard error on to the driver's.

        The query itself shows nothing: for Spark a stream whose source does not answer is one that has no new data.
        """
        now_s = self._clock()
        if waiting_for is None:
            if self._warned_at_s is not None and self._silent_since_s is not None:
                _log.warning("the source answers again, after %.0f s", now_s - self._silent_since_s)
            self._silent_since_s = self._warned_at_s = None
            return
        self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
        silent_s = now_s - self._silent_since_s
        is_due = self._warned_at_s is None or now_s - self._warned_at_s >= WARN_EVERY_S
        if silent_s >= WARN_AFTER_S and is_due:
            self._warned_at_s = now_s
            _log.warning("nothing new is planned since %.0f s, the source does not answer: %s", silent_s, waiting_for)

    def _note(
        self,
        ends: Offsets,
        *,
        waiting_for: RetriableError | None,
        left_out: Sequence[LeftOut] = (),
        caught_up: Sequence[SourcePartition] = (),
    ) -> None:
        if self._settings.note_path is None:
            self._warn(waiting_for)
        now_ms = self._now_ms()
        self._since_ms = None if waiting_for is None else self._since_ms or now_ms
        note = planner_state.PlannerNote(
            at_ms=now_ms,
            waiting_for=None if waiting_for is None else str(waiting_for),
            since_ms=self._since_ms,
            error_name=None if waiting_for is None else waiting_for.error_name,
            ends=ends,
            left_out=tuple(one.document() for one in left_out),
            caught_up=tuple(caught_up),
        )
        try:
            planner_state.write_note(self._settings.note_path, note)
        except OSError as error:
            _log.warning("the planner's note was not written: %s", error)
