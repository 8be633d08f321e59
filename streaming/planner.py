"""Planner process, and the driver at start-up: asks the source how far its logs reach, and plans the next micro-batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shallow_mirror.broker.cluster import Cluster, TopicMetadata
from shallow_mirror.broker.range_reader import RangeReader, ReadRange
from shallow_mirror.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, Retriable
from shallow_mirror.sinks import routing
from shallow_mirror.streaming import notes, planning
from shallow_mirror.streaming.plan_settings import PlanSettings
from shallow_mirror.streaming.planning import Offsets
from shallow_mirror.types import IsolationLevel, PlannedRange, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)

_SAMPLE_FETCH_BYTES = 1 << 20
_SAMPLE_MS = 5_000.0
_PATIENCE_MS = 60_000.0
_PAUSE_S = 1.0
_TRUNCATION_CHECKS = 5


class Positioned(Protocol):
    @property
    def offset(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Included partitions that have a leader. `ends` are LSOs under read_committed, else high watermarks."""

    ends: Mapping[SourcePartition, int]
    leader_epochs: Mapping[SourcePartition, int]
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    base_offset: int
    next_offset: int
    size_bytes: int

    @property
    def bytes_per_offset(self) -> float:
        return self.size_bytes / max(1, self.next_offset - self.base_offset)


class Planner:
    """Questions to the source cluster. Raises Retriable when it does not answer until the deadline."""

    def __init__(self, settings: PlanSettings, cluster: Cluster) -> None:
        self._settings, self._cluster = settings, cluster

    def log_ends(self, deadline: Deadline) -> LogEnds:
        topics = self._topics(deadline)
        epochs = {
            SourcePartition(topic.name, topic.topic_id, one.partition): one.leader_epoch
            for topic in topics.values()
            for one in topic.partitions.values()
            if one.leader >= 0
        }
        ends = self._list(epochs, LATEST_TIMESTAMP, deadline)
        return LogEnds(ends=ends, leader_epochs=epochs, topic_ids={name: topic.topic_id for name, topic in topics.items()})

    def start_offsets(self, known: Mapping[SourcePartition, Positioned], deadline: Deadline) -> dict[SourcePartition, int]:
        """Where partitions that `known` lacks begin: the configured start, moved down to a batch's base offset, while
        nothing is known yet; the log start otherwise. Raises DataLoss when a known topic was created again."""
        listing = self.log_ends(deadline)
        planning.require_same_topics({one: position.offset for one, position in known.items()}, listing.topic_ids)
        return self.starts_of([one for one in listing.ends if one not in known], listing, deadline, is_first_run=not known)

    def starts_of(
        self, sources: Iterable[SourcePartition], listing: LogEnds, deadline: Deadline, *, is_first_run: bool
    ) -> dict[SourcePartition, int]:
        chosen = list(sources)
        if not is_first_run:
            return self._list(chosen, EARLIEST_TIMESTAMP, deadline)
        if self._settings.start_offsets:
            return self._given_starts(chosen, listing, deadline)
        timestamp = self._settings.start_timestamp_ms
        if timestamp == LATEST_TIMESTAMP:
            return {one: listing.ends[one] for one in chosen}
        listed = self._list(chosen, timestamp, deadline)
        if timestamp == EARLIEST_TIMESTAMP:
            return listed
        starts = {one: min(offset, listing.ends[one]) if offset >= 0 else listing.ends[one] for one, offset in listed.items()}
        return self._moved_down(starts, listing, deadline)

    def _given_starts(
        self, sources: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """Raises ConfigError: as with Spark's Kafka source, every partition needs its start, and none may be invented."""
        given = self._settings.start_offsets
        missing = sorted({str(one.topic_partition) for one in sources} - {str(one) for one in given})
        unknown = sorted({str(one) for one in given} - {str(one.topic_partition) for one in sources})
        problems = [f"starting offsets: {one} has none" for one in missing]
        problems += [f"starting offsets: there is no partition {one} to read, or it has no leader" for one in unknown]
        if problems:
            raise ConfigError(problems)
        listed = self._list(sources, EARLIEST_TIMESTAMP, deadline)
        starts = {}
        for one in sources:
            offset = given[one.topic_partition]
            starts[one] = listed[one] if offset == EARLIEST_TIMESTAMP else listing.ends[one] if offset < 0 else offset
        held = {one: start for one, start in starts.items() if start > listed[one]}  # who reads finds what was deleted
        return starts | self._moved_down(held, listing, deadline)

    def first_batches(
        self, starts: Offsets, listing: LogEnds, deadline: Deadline
    ) -> Iterator[tuple[SourcePartition, FirstBatch]]:
        """The batch that holds or follows each start below its end, in the order of arrival."""
        by_name = {one.topic_partition: one for one in starts if starts[one] < listing.ends.get(one, 0)}
        if not by_name:
            return
        seen: set[SourcePartition] = set()
        ranges = [
            ReadRange(
                topic_partition=name,
                leader_epoch=listing.leader_epochs[one],
                position=starts[one],
                end=starts[one] + 1,
                bytes_per_offset=planning.UNKNOWN_BYTES_PER_OFFSET,
            )
            for name, one in sorted(by_name.items())
        ]
        reader = RangeReader(
            self._cluster, ranges, isolation=self._settings.isolation, fetch_bytes=_SAMPLE_FETCH_BYTES, deadline=deadline
        )
        for response in reader:
            for part in response:
                source = by_name[part.topic_partition]
                if len(part.index) > 0 and source not in seen:
                    seen.add(source)
                    yield (
                        source,
                        FirstBatch(
                            base_offset=int(part.index.headers["base_offset"][0]),
                            next_offset=int(part.index.last_offset[0]) + 1,
                            size_bytes=int(part.index.size_bytes[0]),
                        ),
                    )

    def sample(self, starts: Offsets, listing: LogEnds, deadline: Deadline) -> dict[SourcePartition, float]:
        """Bytes per offset by the first batch, of the partitions that answer soon. An estimate: whoever reads the range
        meets what is wrong with it, and says so."""
        sampled: dict[SourcePartition, float] = {}
        try:
            for one, batch in self.first_batches(starts, listing, deadline.sooner(_SAMPLE_MS)):
                sampled[one] = batch.bytes_per_offset
        except MirrorError as error:
            _log.info("sampled the batches of %d of %d partitions: %s", len(sampled), len(starts), error)
        return sampled

    def _moved_down(self, starts: Offsets, listing: LogEnds, deadline: Deadline) -> dict[SourcePartition, int]:
        moved = dict(starts)
        for one, batch in self.first_batches(starts, listing, deadline):
            if batch.base_offset < starts[one]:
                moved[one] = batch.base_offset
                _log.info(
                    "%s: start %d lies inside a batch: moved down to %d", one.topic_partition, starts[one], batch.base_offset
                )
        return moved

    def _topics(self, deadline: Deadline) -> dict[str, TopicMetadata]:
        listed = self._cluster.metadata(None, deadline).topics
        rules = self._settings
        return {
            name: topic
            for name, topic in listed.items()
            if topic.error_code == 0 and routing.is_included(name, rules.include, rules.exclude, is_internal=topic.is_internal)
        }

    def _list(self, sources: Iterable[SourcePartition], timestamp: int, deadline: Deadline) -> dict[SourcePartition, int]:
        by_name: dict[TopicPartition, SourcePartition] = {one.topic_partition: one for one in sources}
        if not by_name:
            return {}
        isolation = self._settings.isolation if timestamp == LATEST_TIMESTAMP else IsolationLevel.READ_UNCOMMITTED
        listed = self._cluster.list_offsets(dict.fromkeys(by_name, timestamp), isolation, deadline)
        return {by_name[name]: one.offset for name, one in listed.items()}


class MicroBatchPlanner:
    """State of the planner process over the life of a query: estimates, slots of last time, the available-now target."""

    def __init__(
        self,
        settings: PlanSettings,
        planner: Planner,
        *,
        parallelism: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._settings, self._planner, self._parallelism = settings, planner, parallelism
        self._clock, self._sleep, self._now_ms = clock, sleep, now_ms
        self._bytes_per_offset: dict[SourcePartition, float] = {}
        self._slots: dict[SourcePartition, int] = {}
        self._leader_epochs: Mapping[SourcePartition, int] = {}
        self._target: LogEnds | None = None
        self._is_available_now = False
        self._since_ms: int | None = None
        self._planned: tuple[float, float] | None = None

    def initial(self) -> dict[SourcePartition, int]:
        """Positions of a mirror that has none. Raises Retriable."""
        return self._planner.start_offsets({}, self._deadline())

    def prepare_available_now(self) -> None:
        """Fix the end of the query. Raises Retriable: a query that must end has nothing to wait for otherwise."""
        self._is_available_now = True
        self._target = self._insist()

    def latest(self, start: Offsets) -> dict[SourcePartition, int]:
        """Where the next micro-batch ends; `start` while the source does not answer. Raises DataLoss.

        New partitions enter at their log start, without a range; they move from the next plan on.
        """
        try:
            listing = self._checked(start)
            entering = [one for one in listing.ends if one not in start]
            found = self._planner.starts_of(entering, listing, self._deadline(), is_first_run=False)
        except Retriable as error:
            self._note(start, {}, waiting_for=str(error))
            return dict(start)
        self._leader_epochs = listing.leader_epochs
        rate = self._learn(start, listing)
        budget = planning.budget_bytes(self._settings.micro_batch_bytes, rate, self._settings.transaction_timeout_ms)
        planned = planning.plan_ends(start, listing.ends, self._bytes_per_offset, budget)
        if self._settings.micro_batch_offsets is not None:
            planned = planning.plan_ends(start, planned, dict.fromkeys(start, 1.0), self._settings.micro_batch_offsets)
        self._planned = (self._clock(), self._bytes_between(start, planned))
        self._note(planned, listing.ends, waiting_for=None)
        return planning.merge_new(planned, found)

    def ranges(self, start: Offsets, end: Offsets) -> tuple[PlannedRange, ...]:
        """Ranges of a micro-batch, also of one that an earlier process planned: then leaders and sizes are looked up, and
        topics that were excluded since are left out."""
        rules = self._settings
        start = {one: at for one, at in start.items() if routing.is_included(one.topic, rules.include, rules.exclude)}
        if not self._leader_epochs:
            try:
                listing = self._planner.log_ends(self._deadline())
                self._leader_epochs = listing.leader_epochs
                self._learn(start, listing)
            except Retriable as error:
                _log.warning("planning without leader epochs: %s", error)
        ranges = planning.plan_ranges(
            start,
            end,
            bytes_per_offset=self._bytes_per_offset,
            leader_epochs=self._leader_epochs,
            slots=self._settings.slots,
            slot_bytes=self._settings.slot_bytes,
            parallelism=self._parallelism,
            last=self._slots,
        )
        self._slots.update({one.source: one.slot for one in ranges})
        return ranges

    def _checked(self, start: Offsets) -> LogEnds:
        """Log ends that agree with `start`. A new leader may answer low for a moment: asked again before it is DataLoss."""
        listing = self._target or (self._insist() if self._is_available_now else self._planner.log_ends(self._deadline()))
        planning.require_same_topics(start, listing.topic_ids)
        fresh = listing
        for _ in range(_TRUNCATION_CHECKS):
            if all(fresh.ends.get(one, at) >= at for one, at in start.items()):
                return self._target or fresh
            self._sleep(_PAUSE_S)
            fresh = self._planner.log_ends(self._deadline())
        planning.require_not_truncated(start, fresh.ends)
        return self._target or fresh

    def _insist(self) -> LogEnds:
        patience = Deadline.after_ms(_PATIENCE_MS, self._clock)
        while True:
            try:
                return self._planner.log_ends(self._deadline())
            except Retriable as error:
                if patience.is_over():
                    raise
                self._note({}, {}, waiting_for=str(error))
                self._sleep(_PAUSE_S)

    def _learn(self, start: Offsets, listing: LogEnds) -> float | None:
        """Take over what the driver measured, sample what nobody read yet; bytes per second, None at first."""
        measured = notes.read_measured(self._settings.measured_path)
        if measured is not None:
            self._bytes_per_offset.update(measured.bytes_per_offset)
        unknown = {one: at for one, at in start.items() if one not in self._bytes_per_offset and listing.ends.get(one, at) > at}
        if unknown:
            self._bytes_per_offset.update(self._planner.sample(unknown, listing, self._deadline()))
        if measured is not None and measured.bytes_per_s is not None:
            return measured.bytes_per_s
        return self._own_rate()

    def _own_rate(self) -> float | None:
        """Planned bytes by the time since: too low when the query idled, never too high."""
        if self._planned is None or self._planned[1] < planning.LEAST_MICRO_BATCH_BYTES:
            return None
        at, size = self._planned
        return size / max(0.001, self._clock() - at)

    def _bytes_between(self, start: Offsets, end: Offsets) -> float:
        return sum(
            (end[one] - at) * self._bytes_per_offset.get(one, planning.UNKNOWN_BYTES_PER_OFFSET) for one, at in start.items()
        )

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._settings.request_timeout_ms, self._clock)

    def _note(self, planned: Offsets, ends: Offsets, *, waiting_for: str | None) -> None:
        now_ms = self._now_ms()
        self._since_ms = (self._since_ms or now_ms) if waiting_for else None
        lag = {one: max(0, ends[one] - at) for one, at in planned.items() if one in ends}
        note = notes.PlannerNote(at_ms=now_ms, waiting_for=waiting_for, since_ms=self._since_ms, lag_offsets=lag, ends=ends)
        try:
            notes.write_note(self._settings.note_path, note)
        except OSError as error:
            _log.warning("the planner's note was not written: %s", error)
