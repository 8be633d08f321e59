"""Planner process: ends and slots of the next micro-batch, over the life of a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace

from shallow_mirror import routing
from shallow_mirror.broker.net import PRODUCER_FORGOTTEN, UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import LogTruncatedError, RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.streaming.planning import offset_planning, planner_state
from shallow_mirror.streaming.planning.left_out_partitions import LeftOutPartition, read_left_out
from shallow_mirror.streaming.planning.new_partitions import NewPartitions
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.planning.rate_limiter import RateLimiter
from shallow_mirror.streaming.planning.source_availability import SourceFailures
from shallow_mirror.streaming.planning.source_offsets import LogEnds, SourceOffsets
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, PlannedRange, SourcePartition

_log = logging.getLogger(__name__)

_PATIENCE_MS = 60_000.0
"""How long unreachable parts of the source are waited for with available-now, before the others are planned without them."""
_PAUSE_S = 1.0
"""Between two attempts to plan or to list log ends."""
_TRUNCATION_CHECKS = 5
"""How often log ends below a position are listed before they count as truncated: a new leader may report low ends briefly."""
WARN_AFTER_S, WARN_EVERY_S = 10.0, 60.0
"""How long the source does not answer before a stream without state files logs it, and how often it logs it again."""


class MicroBatchPlanner:
    """State of the planner process over the life of a query: estimates, slots of the last plan, the available-now target."""

    def __init__(
        self,
        config: PlannerConfig,
        source: SourceOffsets,
        *,
        parallelism: int,
        recorded: Offsets | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        deadline_clock: Callable[[], float] | None = None,
    ) -> None:
        """Start a query. `recorded`: positions in the offset map when it begins; a Spark checkpoint is set to them.

        `deadline_clock`: of requests to the source; None: `clock`. One that returns infinity ends a request that waits.
        """
        self._config = config
        self._source = source
        self._parallelism = parallelism
        self._recorded: Offsets = recorded or {}
        self._new_partitions = NewPartitions(config.registration, self._recorded)
        self._clock = clock
        self._deadline_clock = deadline_clock or clock
        self._sleep = sleep
        self._now_ms = now_ms
        self._bytes_per_offset: dict[SourcePartition, float] = {}
        self._bytes_per_batch: float | None = None
        self._slots: dict[SourcePartition, int] = {}
        self._has_listed = False
        self._has_planned = False
        """False while Spark may still replay the plan of an earlier process."""
        self._planned_revision: str | None = None
        self._target: LogEnds | None = None
        self._is_available_now = False
        self._waiting_since_ms: int | None = None
        self._silent_since_s: float | None = None
        self._warned_at_s: float | None = None
        self._last_plan: tuple[float, float] | None = None
        """When it was made, and its estimated bytes."""
        self._copied: Mapping[str, int] | None = None
        self._failures = SourceFailures()
        self._all_left_out_since: float | None = None
        self._truncated: frozenset[SourcePartition] = frozenset()
        """Logs that are confirmed to end below their positions: not checked several times again."""
        self._above_stable: frozenset[SourcePartition] = frozenset()
        """Partitions that wait for an open transaction, of which records were copied with read_uncommitted."""
        self._limiter = RateLimiter(config.bytes_per_second, config.topic_bytes_per_second, clock())

    @property
    def source_cluster_id(self) -> str:
        """Return the id of the source cluster; empty before its first answer."""
        return self._source.cluster_id

    def initial(self) -> dict[SourcePartition, int]:
        """Return the first positions of a mirror or stream that has none. Raise RetriableError, ConfigError."""
        deadline = self._deadline()
        # A partition that is listed later begins at its log start.
        begins_at_log_start = self._config.start_timestamp_ms == EARLIEST_TIMESTAMP and not self._config.start_offsets
        listing = self._source.log_ends(deadline) if begins_at_log_start else self._source.all_log_ends(deadline)
        listing.require_answers()
        offset_planning.require_topics(self._config.required_topics, listing.topic_ids)
        return self._source.starts_at_mirror_start(list(listing.ends), (), listing, deadline)

    def prepare_available_now(self) -> None:
        """Fix the end of the query. Raise RetriableError: a query that must end cannot wait without limit.

        Partitions that appeared after the driver's start are not part of it: to wait for its registration would delay the end.
        """
        self._is_available_now = True
        listing = self._log_ends_with_retries()
        self._target = replace(listing, ends=self._new_partitions.registered_only(listing.ends))

    def latest(self, start: Offsets) -> Offsets:
        """Return the end of the next micro-batch: `start` while the source does not answer, or while nothing may be planned.

        With `on_data_loss: continue` a partition whose log ends below its position stays there until the log reaches it again.

        New partitions enter without a range: at their log start, or at the offset that the driver has registered; they move
        from the next plan on. With available-now, a plan without anything new would end the query: this call waits until
        something may be planned. Raise DataLossError, and RetriableError if new partitions cannot be registered.

        A partition that a micro-batch left out is rewound to its position, without a range, while the others move; then it is
        kept out of plans until its next try.
        """
        self._has_planned = True
        current = self._at_recorded(start)
        if current is not start and any(current[source] < offset for source, offset in start.items()):
            return current
        left_out = {entry.source: entry for entry in read_left_out(self._config.left_out_path) if entry.source in start}
        back = {
            source: entry.position
            for source, entry in left_out.items()
            if entry.position is not None and entry.position < current[source]
        }
        current = {**current, **back} if back else current
        while True:
            planned, wait_s = self._plan_ends(current, left_out, back)
            # Spark ends an available-now query at the first plan without progress, so such a plan may only be final.
            if wait_s == 0.0 or not self._is_available_now or planned != start:
                return planned
            self._sleep(min(wait_s, _PAUSE_S))

    def _at_recorded(self, start: Offsets) -> Offsets:
        """Return `start` at the positions of the offset map; `start` itself, except in the first plan of a query.

        Spark's checkpoint is ahead of the map if a start of the mirror or `recover --redo` removed rows: a micro-batch without
        ranges rewinds Spark, otherwise nothing is planned before the source has something new. It is behind if micro-batches
        were copied without Spark's stream: plans from there on would ask for offsets that are copied.
        """
        recorded, self._recorded = self._recorded, {}
        moved = {source: position for source, position in recorded.items() if start.get(source, position) != position}
        rewound = sum(position < start[source] for source, position in moved.items())
        if rewound:
            _log.warning("planned again from their positions in the offset map: %s", counted(rewound, "partition"))
        return {**start, **moved} if moved else start

    def _plan_ends(
        self, start: Offsets, left_out: Mapping[SourcePartition, LeftOutPartition], back: Collection[SourcePartition]
    ) -> tuple[Offsets, float]:
        """Return the end offsets, and the seconds until something may be planned if everything is held back.

        `back`: partitions that are rewound by this plan and therefore stay at their offsets.
        """
        try:
            start, listing = self._verified_ends(start)
            # What appeared after the driver's start is not part of an available-now query.
            is_closed = self._config.registration is not None and self._target is not None
            unregistered = () if is_closed else self._new_partitions.unregistered(start, listing.ends)
            if unregistered:
                moved = planner_state.read_paused_topics(self._config.paused_path).moved
                unregistered = [source for source in unregistered if source.topic not in moved]
            first_offsets = self._source.starts_of(unregistered, listing, self._deadline(), is_first_run=False)
        except RetriableError as error:
            self._write_state({}, waiting_for=error)
            if self._is_available_now:
                raise  # a plan without progress would end the query
            self._paused_topics()  # nothing is planned: a hand-over need not wait for the source
            return start, 0.0
        self._has_listed = True
        # `ends`: all that has grown, for the lag and the health of the run. `allowed`: of these, what may be in this micro-batch.
        # Partitions that enter get a position in either case, also of a paused topic: without a range nothing of them is copied.
        entering = self._new_partitions.entering_positions(start, listing.ends, first_offsets, self._clock())
        paused = self._paused_topics()
        ends = offset_planning.changed_offsets(start, self._new_partitions.registered_only(listing.ends))
        allowed = {partition: end for partition, end in ends.items() if partition.topic not in paused} if paused else ends
        # Failures first: a partition that has begun to answer again is due at once.
        # With available-now none of them is in this query, however soon its leader is back.
        failures = self._failures.update(listing, self._now_ms(), at_once=self._is_available_now)
        waiting = {*back, *self._failures.not_due(left_out, listing, self._now_ms())}
        if waiting:
            allowed = {partition: end for partition, end in allowed.items() if partition not in waiting}
        # After everything was left out: sampling fetches a batch of each new partition, and one that is broken would fail here.
        rate = self._update_estimates(start, allowed, listing)
        config = self._config
        budget = offset_planning.plan_budget_bytes(
            config.micro_batch_bytes, rate, config.round_timeout_ms, config.commit_interval_ms
        )
        planned, wait_s = self._within_limits(start, allowed, budget)
        # The size of this plan and the time until the next one give the rate before the driver has measured one.
        moving = {partition: planned[partition] for partition in ends}
        size = sum(offset_planning.estimate_bytes(start, moving, self._bytes_per_offset).values())
        self._last_plan = (self._clock(), size)
        # Nothing will be planned of these, so no micro-batch would ever show that they are well again.
        caught_up = [source for source in left_out if source in start and listing.ends.get(source) == start[source]]
        self._write_state(ends, waiting_for=None, left_out=failures, caught_up=caught_up)
        if wait_s == 0.0 and not allowed and waiting & ends.keys():
            wait_s = self._left_out_wait_s([left_out[source] for source in waiting & ends.keys() & left_out.keys()])
        return ({**planned, **entering} if entering else planned), wait_s

    def _paused_topics(self) -> frozenset[str]:
        """Return the topics of which this plan has nothing, and let the driver know that they were read.

        Spark asks for a plan when the micro-batch before has ended: from here on nothing of these topics is written.
        """
        paused, path = planner_state.read_paused_topics(self._config.paused_path), self._config.paused_path
        if path is not None and paused.revision is not None and paused.revision != self._planned_revision:
            try:
                planner_state.write_planned_revision(path, paused.revision)
                self._planned_revision = paused.revision
            except OSError as error:
                _log.warning("it was not written which topics are paused in plans: %s", error)
        return paused.topics

    def _left_out_wait_s(self, waiting: Sequence[LeftOutPartition]) -> float:
        """Return the pause before another plan if only left out partitions have anything to copy.

        With available-now a query ends at a plan without progress: for _PATIENCE_MS they are tried again first.
        """
        # The time of this wait is known, and every start begins it anew: runs that end before it would never write there.
        if any(entry.error_name == PRODUCER_FORGOTTEN for entry in waiting):
            return _PAUSE_S
        self._all_left_out_since = self._all_left_out_since or self._clock()
        is_patient = self._clock() - self._all_left_out_since < _PATIENCE_MS / 1000
        # One that was left out since had been copied before: what was waited for earlier is over.
        is_recent = any(self._now_ms() - entry.since_ms < _PATIENCE_MS for entry in waiting)
        return _PAUSE_S if is_patient or is_recent else 0.0

    def _within_limits(self, start: Offsets, ends: Offsets, budget: int) -> tuple[Offsets, float]:
        if self._limiter.is_limited:
            least_bytes = max(1.0, self._bytes_per_batch or 0.0)
            limited = self._limiter.plan(
                start, ends, self._bytes_per_offset, budget, least_bytes=least_bytes, copied=self._copied, now=self._clock()
            )
            planned, wait_s = limited.ends, limited.wait_s
        else:
            planned, wait_s = offset_planning.plan_ends(start, ends, self._bytes_per_offset, budget), 0.0
        if self._config.micro_batch_offsets is not None:
            planned = offset_planning.plan_ends(start, planned, dict.fromkeys(start, 1.0), self._config.micro_batch_offsets)
        return planned, wait_s

    def ranges(self, start: Offsets, end: Offsets) -> tuple[PlannedRange, ...]:
        """Return the ranges of a micro-batch, also of one that an earlier process planned: then sizes are sampled.

        Topics that were excluded or deleted since are left out, and of a micro-batch of an earlier process those that are
        paused now. Nothing is lost by that: positions are in the offset map.
        """
        config = self._config
        # A micro-batch of this process is done as it was planned. One that an earlier process left may be hours old: `latest`
        # leads Spark back to the positions of what is left out of it.
        paused = frozenset() if self._has_planned else planner_state.read_paused_topics(config.paused_path).topics
        moving = {
            partition: to
            for partition, to in self._new_partitions.registered_only(offset_planning.changed_offsets(start, end)).items()
            if to > start[partition] and partition.topic not in paused
        }
        topics = {partition.topic for partition in moving}
        included = {name for name in topics if routing.is_included(name, config.include, config.exclude)}
        start = self._without_forgotten({partition: start[partition] for partition in moving if partition.topic in included})
        cut: dict[SourcePartition, int] = {}
        if not self._has_listed:
            try:
                listing = self._source.log_ends(self._deadline())
                self._has_listed = True
                start = self._of_existing_topics(self._without_recreated(start, listing.topic_ids), listing.topic_ids)
                self._update_estimates(start, offset_planning.changed_offsets(start, listing.ends), listing)
                cut = self._ends_of_open_plan(moving, listing)
            except RetriableError as error:
                # A plan that Spark replays must be answered, also while the source is unreachable.
                _log.warning("planning without the source's log ends: %s", error)
        # Ranges are read from their positions in the map anyway: no need to rewind Spark, except to what is not copied now.
        # That is also a topic that this listing lacks: a broker that has only just started may not list it yet.
        self._recorded = {
            partition: position
            for partition, position in self._recorded.items()
            if partition not in start or partition in cut or position > moving[partition]
        }
        ranges = offset_planning.plan_ranges(
            start,
            {**end, **cut},
            bytes_per_offset=self._bytes_per_offset,
            slots=config.slots,
            slot_bytes=config.slot_bytes,
            parallelism=self._parallelism,
            last=self._slots,
            bytes_per_batch=self._bytes_per_batch,
            request_bytes=config.request_bytes,
        )
        self._slots.update({planned.source: planned.slot for planned in ranges})
        try:
            planner_state.write_planned_ranges(config.planned_path, ranges)
        except OSError as error:
            _log.warning("the ranges of the micro-batch were not written: %s", error)
        return ranges

    def _ends_of_open_plan(self, planned: Offsets, listing: LogEnds) -> dict[SourcePartition, int]:
        """Return lower ends for ranges that an earlier run planned with read_uncommitted above the last stable offset.

        A task would wait there until the transactions end. Only positions in an offset map let Spark be rewound to the rest.
        """
        if self._config.isolation is not IsolationLevel.READ_COMMITTED:
            return {}
        return {
            partition: listing.ends[partition]
            for partition, end in planned.items()
            if partition in self._recorded and listing.ends.get(partition, end) < end
        }

    def _verified_ends(self, start: Offsets) -> tuple[Offsets, LogEnds]:
        """Return `start` without recreated topics, and log ends that are not below it. Raise DataLossError, RetriableError."""
        start = self._without_forgotten(start)
        listing = self._target or (
            self._log_ends_with_retries() if self._is_available_now else self._source.log_ends(self._deadline())
        )
        # A new leader may report a low end for a moment after an election: it is listed again before it counts as truncated.
        for _ in range(_TRUNCATION_CHECKS):
            current = self._without_recreated(start, listing.topic_ids)  # each time: a topic may be recreated in between
            truncated, _ = self._truncated_logs(current, listing)
            if truncated.keys() <= self._truncated:
                break
            self._sleep(_PAUSE_S)
            listing = self._source.log_ends(self._deadline())
        current = self._without_recreated(start, listing.topic_ids)
        truncated, waiting = self._truncated_logs(current, listing)
        if truncated and not (self._config.isolates or self._config.continues_after_data_loss):
            paused = planner_state.read_paused_topics(self._config.paused_path).topics
            for source, error in truncated.items():
                if source.topic not in paused:
                    raise error
        held = self._config.held_truncations
        if held is not None:
            for source, error in truncated.items():
                if current[source] > held.get(source, -1):
                    raise error  # the driver begins the next lineage, or holds the partition
        self._truncated = frozenset(truncated)
        self._report_above_stable(waiting, listing)
        verified = (self._target or listing).without(truncated)
        if waiting:
            verified = replace(verified, ends={**verified.ends, **waiting})
        return current, self._without_waiting(verified, current)

    def _without_waiting(self, listing: LogEnds, start: Offsets) -> LogEnds:
        """Return the listing without recreated topics of which `start` has kept the former partitions."""
        recreated = {} if self._config.continues_after_data_loss else offset_planning.recreated_topics(start, listing.topic_ids)
        if not recreated:
            return listing
        if not self._config.isolates_recreated:
            return listing.without_topics(recreated)
        paused = planner_state.read_paused_topics(self._config.paused_path).topics
        return listing.without_topics(recreated.keys() & paused).without_recreated(start)

    def _truncated_logs(self, start: Offsets, listing: LogEnds) -> tuple[dict[SourcePartition, LogTruncatedError], Offsets]:
        """Return an error for each log that ends below its position, and the positions above a last stable offset alone.

        A last stable offset below a position proves no truncation: with read_uncommitted, the mirror copied records of a
        transaction that is still open. If the log was cut as well, the slot that reads on finds its leader epochs different.
        """
        errors = offset_planning.truncation_errors(start, listing.ends)
        if not errors or self._config.isolation is not IsolationLevel.READ_COMMITTED or self._config.always_committed:
            return errors, {}
        log_ends = self._source.high_watermarks(errors, self._deadline())
        truncated = offset_planning.truncation_errors({source: start[source] for source in errors}, log_ends)
        return truncated, {source: start[source] for source in errors if source not in truncated}

    def _report_above_stable(self, waiting: Offsets, listing: LogEnds) -> None:
        """Log each partition once that waits for the end of an open transaction."""
        for source in sorted(waiting.keys() - self._above_stable):
            _log.warning(
                "%s: the position %d is above the last stable offset %d: records of an open transaction were copied with "
                "read_uncommitted. Nothing is copied until that transaction ends",
                source.topic_partition,
                waiting[source],
                listing.ends[source],
            )
        self._above_stable = frozenset(waiting)

    def _without_forgotten(self, start: Offsets) -> Offsets:
        """Return `start` without topics that the operator has forgotten. Spark's checkpoint may still have them."""
        if not self._config.forgotten:
            return start
        return {source: offset for source, offset in start.items() if source.topic_id not in self._config.forgotten}

    def _without_recreated(self, start: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        """Return `start` without recreated topics; these enter as new topics.

        It keeps them where what has their names now does not enter: if they are isolated, paused or handed over. Raise
        DataLossError for all others, unless the mirror continues after data loss.
        """
        if self._config.isolates_recreated:
            return start
        current = offset_planning.without_recreated_topics(start, topic_ids)
        if current is start or self._config.continues_after_data_loss:
            return current
        paused = planner_state.read_paused_topics(self._config.paused_path).topics
        copied = {source: offset for source, offset in start.items() if source.topic not in paused}
        offset_planning.require_same_topics(copied, topic_ids)
        return start

    def _of_existing_topics(self, start: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        deleted = sorted({partition.topic for partition in start} - topic_ids.keys())
        if deleted:
            _log.warning("deleted source topics are left out: %s", ", ".join(deleted))
        return {partition: position for partition, position in start.items() if partition.topic in topic_ids}

    def _log_ends_with_retries(self) -> LogEnds:
        """Return log ends of all partitions, or after _PATIENCE_MS of those that answer. Raise RetriableError then."""
        patience = Deadline.after_ms(_PATIENCE_MS, self._clock)
        while True:
            try:
                listing = self._source.log_ends(self._deadline())
                if not patience.is_over():
                    paused = planner_state.read_paused_topics(self._config.paused_path).topics
                    listing.require_all_answers(paused)
                    self._require_listed(listing, paused)
                return listing
            except RetriableError as error:
                if patience.is_over():
                    raise
                self._write_state({}, waiting_for=error)
                self._sleep(_PAUSE_S)

    def _require_listed(self, listing: LogEnds, not_copied: Set[str]) -> None:
        """Raise RetriableError if a topic is not listed that the driver has just found at the source."""
        missing = {source.topic for source in self._recorded} - listing.topic_ids.keys() - not_copied
        if missing:
            self._source.discover()
            raise RetriableError(
                error_name(UNKNOWN_TOPIC_OR_PARTITION), f"the broker that was asked does not know topic {min(missing)}"
            )

    def _update_estimates(self, start: Offsets, ends: Offsets, listing: LogEnds) -> float | None:
        """Take over the driver's measurements, sample partitions that were never read; return bytes per second, None at first."""
        measurements = planner_state.read_measurements(self._config.measurements_path)
        if measurements is not None:
            self._bytes_per_offset.update(measurements.bytes_per_offset)
            self._bytes_per_batch = measurements.bytes_per_batch or self._bytes_per_batch
            self._copied = measurements.copied
        unknown = {
            partition: start[partition]
            for partition, end in ends.items()
            if end > start[partition] and partition not in self._bytes_per_offset
        }
        if unknown:
            self._bytes_per_offset.update(self._source.sample(unknown, listing, self._deadline()))
        if measurements is not None and measurements.bytes_per_s is not None:
            return measurements.bytes_per_s
        return self._estimate_rate()

    def _estimate_rate(self) -> float | None:
        """Return the planned bytes by the time since the last plan; None if that plan was too small to tell.

        The rate is too low when the query was idle, never too high. So the plan that follows from it is large enough for the
        driver to measure a rate.
        """
        if self._last_plan is None or self._last_plan[1] < offset_planning.MIN_MEASURED_BYTES:
            return None
        at, size = self._last_plan
        least_ms = self._config.commit_interval_ms
        least = 0.0 if least_ms is None else offset_planning.MIN_MEASURED_BYTES / least_ms * 1000
        return max(least, size / max(0.001, self._clock() - at))

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._config.request_timeout_ms, self._deadline_clock)

    def _warn_if_silent(self, waiting_for: RetriableError | None) -> None:
        """Log the error that is waited out; Spark passes the planner's standard error on to the driver's.

        The query itself shows nothing: to Spark a stream whose source does not answer is one without new data.
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
            _log.warning("nothing new was planned for %.0f s, the source does not answer: %s", silent_s, waiting_for)

    def _write_state(
        self,
        ends: Offsets,
        *,
        waiting_for: RetriableError | None,
        left_out: Sequence[LeftOutPartition] = (),
        caught_up: Sequence[SourcePartition] = (),
    ) -> None:
        if self._config.planner_state_path is None:
            self._warn_if_silent(waiting_for)
        now_ms = self._now_ms()
        self._waiting_since_ms = None if waiting_for is None else self._waiting_since_ms or now_ms
        state = planner_state.PlannerState(
            at_ms=now_ms,
            waiting_for=None if waiting_for is None else str(waiting_for),
            since_ms=self._waiting_since_ms,
            error_name=None if waiting_for is None else waiting_for.error_name,
            ends=ends,
            left_out=tuple(entry.document() for entry in left_out),
            caught_up=tuple(caught_up),
        )
        try:
            planner_state.write_state(self._config.planner_state_path, state)
        except OSError as error:
            _log.warning("the planner's state was not written: %s", error)
