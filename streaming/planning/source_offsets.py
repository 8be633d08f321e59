"""Planner process, and the driver at start-up: asks the source which partitions it has and how far their logs reach."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import TopicMetadata
from shallow_mirror.broker.fetch.range_reader import RangeReader, ReadRange
from shallow_mirror.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import routing
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.streaming.planning.planner_config import PlanSettings
from shallow_mirror.types import IsolationLevel, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)

_SAMPLE_FETCH_BYTES = 1 << 20
_SAMPLE_MS = 5_000.0

_COST_OF_A_NAME = 10
"""To ask for a topic by name costs as much as so many topics in an answer that has not changed."""


class Positioned(Protocol):
    @property
    def offset(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Included partitions whose leaders answer. `ends` are LSOs under read_committed, else high watermarks.

    `unanswered`: why the others are missing; `leaderless` says so of those that have no leader at all.
    """

    ends: Mapping[SourcePartition, int]
    topic_ids: Mapping[str, str]
    unanswered: Mapping[SourcePartition, MirrorError] = field(default_factory=dict)
    leaderless: frozenset[SourcePartition] = frozenset()

    def require_answers(self, sources: Collection[SourcePartition] | None = None) -> None:
        """Raise the error of the first of these partitions (None: of all) that has a leader which does not answer."""
        for source, error in sorted(self.unanswered.items()):
            if source not in self.leaderless and (sources is None or source in sources):
                raise error

    def without(self, wrong: Mapping[SourcePartition, MirrorError]) -> LogEnds:
        """Leave these out as well."""
        if not wrong:
            return self
        ends = {source: end for source, end in self.ends.items() if source not in wrong}
        return replace(self, ends=ends, unanswered={**self.unanswered, **wrong})


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    base_offset: int
    next_offset: int
    size_bytes: int

    @property
    def bytes_per_offset(self) -> float:
        return self.size_bytes / max(1, self.next_offset - self.base_offset)


@dataclass(frozen=True, slots=True)
class _Partitions:
    """Those that have a leader. `places` are the names of `sources`."""

    sources: Sequence[SourcePartition]
    places: Sequence[TopicPartition]
    topic_ids: Mapping[str, str]
    leaderless: frozenset[SourcePartition]

    @classmethod
    def of(cls, topics: Mapping[str, TopicMetadata]) -> _Partitions:
        sources = [
            SourcePartition(topic.name, topic.topic_id, one.partition)
            for topic in topics.values()
            for one in topic.partitions.values()
            if one.leader >= 0
        ]
        leaderless = frozenset(
            SourcePartition(topic.name, topic.topic_id, one.partition)
            for topic in topics.values()
            for one in topic.partitions.values()
            if one.leader < 0
        )
        places = [one.topic_partition for one in sources]
        return cls(sources, places, {name: topic.topic_id for name, topic in topics.items()}, leaderless)


class Planner:
    """Questions to the source cluster. Raises RetriableError when it does not answer until the deadline."""

    def __init__(self, settings: PlanSettings, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._cluster, self._clock = settings, cluster, clock
        self._listed: tuple[object, _Partitions] | None = None
        self._asked: tuple[str, ...] | None = None
        self._discovered_at: float | None = None

    def log_ends(self, deadline: Deadline) -> LogEnds:
        """What the cluster lists is looked at again only when it has changed.

        All topics are listed once in `discovery_s`; in between only those that were included so far, where that is cheaper.
        Raises RetriableError where no leader answers.
        """
        names = self._names()
        listed = self._cluster.metadata(names, deadline)
        if names is None:
            self._discovered_at = self._clock()
        if self._listed is None or self._listed[0] is not listed:
            self._listed = listed, _Partitions.of(self._included(listed.topics))
            if names is None:
                self._ask_for(self._listed[1].topic_ids, len(listed.topics))
        known = self._listed[1]
        none: tuple[dict[TopicPartition, int], dict[TopicPartition, MirrorError]] = ({}, {})
        found, wrong = self._cluster.latest_offsets(known.places, self._settings.isolation, deadline) if known.places else none
        unanswered: dict[SourcePartition, MirrorError] = {
            source: RetriableError("LEADER_NOT_AVAILABLE", f"{source.topic_partition} has no leader")
            for source in known.leaderless
        }
        if not wrong:
            ends = dict(zip(known.sources, map(found.__getitem__, known.places), strict=True))
        else:
            pairs = list(zip(known.sources, known.places, strict=True))
            ends = {source: found[place] for source, place in pairs if place in found}
            unanswered |= {source: wrong[place] for source, place in pairs if place in wrong}
            definite = [error for error in wrong.values() if not isinstance(error, RetriableError)]
            if definite and not self._settings.isolates:
                raise definite[0]
        return LogEnds(ends=ends, topic_ids=known.topic_ids, unanswered=unanswered, leaderless=known.leaderless)

    def _names(self) -> tuple[str, ...] | None:
        is_due = self._discovered_at is None or self._clock() - self._discovered_at >= self._settings.discovery_s
        return None if is_due else self._asked

    def _ask_for(self, included: Iterable[str], count: int) -> None:
        """A topic is asked for to the end: a broker that has only just started may leave it out of its list once."""
        names = tuple(sorted({*included, *(self._asked or ())}))
        if names != self._asked:
            self._asked = names if len(names) * _COST_OF_A_NAME < count else None

    def start_offsets(
        self, known: Mapping[SourcePartition, Positioned], deadline: Deadline, *, is_start: bool = True
    ) -> dict[SourcePartition, int]:
        """Where partitions that `known` lacks begin: those of topics of which nothing is known by `topics.start`, and while
        nothing is known at all by the configured start, moved down to a batch's base offset; all others at their log start.

        `is_start`: of the mirror; while it runs, what appears begins at its log start. Raises DataLossError when a known topic
        was created again, ConfigError.
        """
        listing = self.log_ends(deadline)
        if not self._settings.continues_after_data_loss:
            offset_planning.require_same_topics({one: position.offset for one, position in known.items()}, listing.topic_ids)
        listing.require_answers(listing.unanswered.keys() - known.keys())  # where they begin depends on when they are seen
        unknown = [one for one in listing.ends if one not in known]
        if not is_start:
            return self.starts_of(unknown, listing, deadline, is_first_run=False)
        return self.starts_at_a_start(unknown, {one.topic for one in known}, listing, deadline)

    def starts_at_a_start(
        self, unknown: Sequence[SourcePartition], known: Collection[str], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """`known`: topics of which the map has positions; their new partitions begin at the log start. Raises ConfigError."""
        starts = self._starts_by_rule([one for one in unknown if one.topic not in known], listing, deadline)
        rest = [one for one in unknown if one not in starts]
        return starts | self.starts_of(rest, listing, deadline, is_first_run=not known)

    def _starts_by_rule(
        self, sources: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        rules = [(pattern, number) for number, (pattern, _) in enumerate(self._settings.start_rules)]
        chosen: dict[int, list[SourcePartition]] = {}
        matched = {topic: routing.first_match(topic, rules) for topic in {one.topic for one in sources}}
        for one in sources:
            number = matched[one.topic]
            if number is not None:
                chosen.setdefault(number, []).append(one)
        starts: dict[SourcePartition, int] = {}
        for number, members in sorted(chosen.items()):
            pattern, rule = self._settings.start_rules[number]
            if isinstance(rule, int):
                starts |= self._starts_at(rule, members, listing, deadline)
            else:
                starts |= self._explicit_starts(pattern, rule, members, listing, deadline)
        return starts

    def _explicit_starts(
        self, pattern: str, offsets: Mapping[int, int], sources: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """Raises ConfigError with every partition without an offset, and every offset that its partition does not have."""
        first, problems = self._list(sources, EARLIEST_TIMESTAMP, deadline), []
        for one in sources:
            place, offset = one.topic_partition, offsets.get(one.partition)
            if offset is None:
                problems.append(f"topics.start: {pattern}: partition {place} has no offset there: add it")
            elif not first[one] <= offset <= listing.ends[one]:
                problems.append(
                    f"topics.start: {pattern}: offset {offset} of {place}: the source has {first[one]} to {listing.ends[one]}"
                )
        for topic in sorted({one.topic for one in sources}):
            partitions = {one.partition for one in sources if one.topic == topic}
            problems += [
                f"topics.start: {pattern}: {topic} has no partition {number}, or it has no leader"
                for number in sorted(offsets.keys() - partitions)
            ]
        if problems:
            raise ConfigError(problems)
        return self.moved_down({one: offsets[one.partition] for one in sources}, listing, deadline)

    def starts_of(
        self, sources: Iterable[SourcePartition], listing: LogEnds, deadline: Deadline, *, is_first_run: bool
    ) -> dict[SourcePartition, int]:
        chosen = list(sources)
        if not is_first_run:
            return self._list(chosen, EARLIEST_TIMESTAMP, deadline)
        if self._settings.start_offsets:
            return self._given_starts(chosen, listing, deadline)
        return self._starts_at(self._settings.start_timestamp_ms, chosen, listing, deadline)

    def _starts_at(
        self, timestamp: int, chosen: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        if timestamp == LATEST_TIMESTAMP:
            return {one: listing.ends[one] for one in chosen}
        listed = self._list(chosen, timestamp, deadline)
        if timestamp == EARLIEST_TIMESTAMP:
            return listed
        starts = {one: min(offset, listing.ends[one]) if offset >= 0 else listing.ends[one] for one, offset in listed.items()}
        return self.moved_down(starts, listing, deadline)

    def _given_starts(
        self, sources: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """Raises ConfigError: as with Spark's Kafka source, every partition needs its start, none may be invented or lie beyond
        the log's end."""
        given = self._settings.start_offsets
        missing = sorted({str(one.topic_partition) for one in sources} - {str(one) for one in given})
        unknown = sorted({str(one) for one in given} - {str(one.topic_partition) for one in sources})
        problems = [f"startingOffsets: {one} has none" for one in missing]
        problems += [f"startingOffsets: there is no partition {one} to read, or it has no leader" for one in unknown]
        problems += [
            f"startingOffsets: {one.topic_partition}: {given[one.topic_partition]} is beyond the log's end {end}"
            f", as {self._settings.isolation.value} sees it"
            for one in sorted(sources)
            if (end := listing.ends[one]) < given.get(one.topic_partition, end)
        ]
        if problems:
            raise ConfigError(problems)
        listed = self._list(sources, EARLIEST_TIMESTAMP, deadline)
        starts = {}
        for one in sources:
            offset = given[one.topic_partition]
            starts[one] = listed[one] if offset == EARLIEST_TIMESTAMP else listing.ends[one] if offset < 0 else offset
        held = {one: start for one, start in starts.items() if start > listed[one]}  # who reads finds what was deleted
        return starts | self.moved_down(held, listing, deadline)

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
                position=starts[one],
                end=starts[one] + 1,
                bytes_per_offset=offset_planning.UNKNOWN_BYTES_PER_OFFSET,
                topic_id=one.topic_id,
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
            _log.info("sampled the batches of %d of %s: %s", len(sampled), counted(len(starts), "partition"), error)
        return sampled

    def moved_down(self, starts: Offsets, listing: LogEnds, deadline: Deadline) -> dict[SourcePartition, int]:
        """`starts`, where they lie inside a batch at its base offset, or at the log's start inside it: batches are never cut."""
        found = self.first_batches(starts, listing, deadline)
        inside = {one: batch.base_offset for one, batch in found if batch.base_offset < starts[one]}
        log_starts = self.log_starts(inside, deadline)
        moved = {one: max(base_offset, log_starts.get(one, 0)) for one, base_offset in inside.items()}
        for one, offset in moved.items():
            if offset < starts[one]:
                _log.info("%s: start %d lies inside a batch: moved down to %d", one.topic_partition, starts[one], offset)
        return {**starts, **moved}

    def _included(self, listed: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
        rules = self._settings
        return {
            name: topic
            for name, topic in listed.items()
            if topic.error_code == 0 and routing.is_included(name, rules.include, rules.exclude, is_internal=topic.is_internal)
        }

    def log_starts(self, sources: Iterable[SourcePartition], deadline: Deadline) -> dict[SourcePartition, int]:
        return self._list(sources, EARLIEST_TIMESTAMP, deadline)

    def _list(self, sources: Iterable[SourcePartition], timestamp: int, deadline: Deadline) -> dict[SourcePartition, int]:
        by_name: dict[TopicPartition, SourcePartition] = {one.topic_partition: one for one in sources}
        if not by_name:
            return {}
        listed = self._cluster.list_offsets(dict.fromkeys(by_name, timestamp), IsolationLevel.READ_UNCOMMITTED, deadline)
        return {by_name[name]: one.offset for name, one in listed.items()}
