"""Planner process, and the driver at start-up: partitions of the source, their log ends, and their start offsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from shallow_mirror import routing
from shallow_mirror.broker import Cluster, TopicMetadata
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, DataLossError, MirrorError, RetriableError, TopicRecreatedError
from shallow_mirror.plurals import counted
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    UNKNOWN_BYTES_PER_OFFSET,
    IsolationLevel,
    SourcePartition,
    TopicPartition,
)

_log = logging.getLogger(__name__)

_SAMPLE_FETCH_BYTES = 1 << 20
_SAMPLE_MS = 5_000.0

_COST_OF_A_NAME = 10
"""Requesting a topic by name costs as much as so many topics in a response that has not changed."""


class HasOffset(Protocol):
    @property
    def offset(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """Included partitions whose leaders answer. `ends` are LSOs under read_committed, else high watermarks.

    `unanswered`: why the others are missing; `leaderless`: those of them that have no leader at all.
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

    def require_all_answers(self, not_copied: Collection[str]) -> None:
        """Raise the RetriableError of the first partition without a leader that answers. `not_copied`: topics without which."""
        for source, error in sorted(self.unanswered.items()):
            if isinstance(error, RetriableError) and source.topic not in not_copied:
                raise error

    def without(self, failed: Mapping[SourcePartition, MirrorError]) -> LogEnds:
        """Return the listing with these partitions among the unanswered ones."""
        if not failed:
            return self
        ends = {source: end for source, end in self.ends.items() if source not in failed}
        return replace(self, ends=ends, unanswered={**self.unanswered, **failed})

    def without_topics(self, names: Collection[str]) -> LogEnds:
        """Return the listing without the log ends of these topics: nothing of them is planned, and they do not enter."""
        return replace(self, ends={source: end for source, end in self.ends.items() if source.topic not in names})

    def without_recreated(self, former: Offsets) -> LogEnds:
        """Return the listing with partitions of topics that were created again among the unanswered ones.

        `former`: mirrored or planned partitions. A topic of which it has the current id is not one of them.
        """
        names = offset_planning.recreated_topics(former, self.topic_ids)
        if not names:
            return self
        offsets = {source.topic_partition: offset for source, offset in former.items() if source.topic in names}
        return self.without(
            {
                source: TopicRecreatedError(
                    source.topic_partition, offsets.get(source.topic_partition, 0), names[source.topic], source.topic_id
                )
                for source in self.ends
                if source.topic in names
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBatch:
    base_offset: int
    next_offset: int
    size_bytes: int

    @property
    def bytes_per_offset(self) -> float:
        return self.size_bytes / max(1, self.next_offset - self.base_offset)


@dataclass(frozen=True, slots=True)
class _LedPartitions:
    """Those that have a leader. `names` are those of `sources`, in the same order."""

    sources: Sequence[SourcePartition]
    names: Sequence[TopicPartition]
    topic_ids: Mapping[str, str]
    leaderless: frozenset[SourcePartition]

    @classmethod
    def of(cls, topics: Mapping[str, TopicMetadata]) -> _LedPartitions:
        sources = [
            SourcePartition(topic.name, topic.topic_id, partition.partition)
            for topic in topics.values()
            for partition in topic.partitions.values()
            if partition.leader >= 0
        ]
        leaderless = frozenset(
            SourcePartition(topic.name, topic.topic_id, partition.partition)
            for topic in topics.values()
            for partition in topic.partitions.values()
            if partition.leader < 0
        )
        names = [source.topic_partition for source in sources]
        return cls(sources, names, {name: topic.topic_id for name, topic in topics.items()}, leaderless)


class SourceOffsets:
    """Offsets of the source cluster. Every method raises RetriableError if it does not answer until the deadline."""

    def __init__(self, config: PlannerConfig, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._listed: tuple[object, _LedPartitions] | None = None
        self._requested: tuple[str, ...] | None = None
        """Topics that a listing between two discoveries requests by name; None: it requests all."""
        self._discovered_at: float | None = None

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster; empty before the first answer."""
        return self._cluster.known_id

    def log_ends(self, deadline: Deadline) -> LogEnds:
        """Return the log ends of included partitions. Raises RetriableError if no leader answers.

        All topics are listed once in `discovery_s`; in between only those that were included so far if that is cheaper.
        """
        is_due = self._discovered_at is None or self._clock() - self._discovered_at >= self._config.discovery_s
        names = None if is_due else self._requested
        listed = self._cluster.metadata(names, deadline)
        if names is None:
            self._discovered_at = self._clock()
        if self._listed is None or self._listed[0] is not listed:  # the client returns the same object while nothing changed
            self._listed = listed, _LedPartitions.of(self._included(listed.topics))
            if names is None:
                self._request_by_name(self._listed[1].topic_ids, len(listed.topics))
        partitions = self._listed[1]
        latest: Mapping[TopicPartition, int] = {}
        failed: Mapping[TopicPartition, MirrorError] = {}
        if partitions.names:
            latest, failed = self._cluster.latest_offsets(partitions.names, self._config.isolation, deadline)
        unanswered: dict[SourcePartition, MirrorError] = {
            source: RetriableError("LEADER_NOT_AVAILABLE", f"{source.topic_partition} has no leader")
            for source in partitions.leaderless
        }
        if not failed:
            ends = dict(zip(partitions.sources, map(latest.__getitem__, partitions.names), strict=True))
        else:
            pairs = list(zip(partitions.sources, partitions.names, strict=True))
            ends = {source: latest[name] for source, name in pairs if name in latest}
            unanswered |= {source: failed[name] for source, name in pairs if name in failed}
            definite = [error for error in failed.values() if not isinstance(error, RetriableError)]
            if definite and not self._config.isolates:
                raise definite[0]
        return LogEnds(ends=ends, topic_ids=partitions.topic_ids, unanswered=unanswered, leaderless=partitions.leaderless)

    def all_log_ends(self, deadline: Deadline) -> LogEnds:
        """Return the log ends of all included partitions, once all have leaders that answer. Raises RetriableError."""
        tries = 0
        while True:
            listing = self.log_ends(deadline)
            try:
                listing.require_all_answers(())
                return listing
            except RetriableError:
                self._cluster.pause(tries, deadline)
                tries += 1
                if deadline.is_over():
                    raise

    def discover(self) -> None:
        """Let the next listing be of all topics."""
        self._discovered_at = None

    def _request_by_name(self, included: Iterable[str], count: int) -> None:
        """Choose the names for the next listings. `count`: topics of the cluster."""
        # A topic stays requested for good: a broker that has only just started may leave it out of its list once.
        names = tuple(sorted({*included, *(self._requested or ())}))
        if names != self._requested:
            self._requested = names if len(names) * _COST_OF_A_NAME < count else None

    def start_offsets(
        self, positions: Mapping[SourcePartition, HasOffset], deadline: Deadline, *, is_start: bool = True
    ) -> dict[SourcePartition, int]:
        """Return the start offsets of partitions not in `positions`. Raises DataLossError for a recreated topic, ConfigError.

        A recreated topic that is paused or handed over does not begin, and is no error before it is copied again.

        Partitions of topics without any position begin by `topics.start`; while there is no position at all by the configured
        start, aligned to a batch's base offset; all others at their log start. `is_start`: the mirror starts; while it runs,
        new partitions begin at their log start.
        """
        listing = self.log_ends(deadline)
        offsets = {source: position.offset for source, position in positions.items()}
        if not self._config.continues_after_data_loss:
            waiting = offset_planning.recreated_topics(
                (source for source in offsets if source.topic in self._config.not_copied), listing.topic_ids
            )
            listing = listing.without_topics(waiting) if waiting else listing
            if not self._config.isolates_recreated:
                copied = {source: offset for source, offset in offsets.items() if source.topic not in waiting}
                offset_planning.require_same_topics(copied, listing.topic_ids)
        # Where a new partition begins depends on when it is listed first: one that does not answer must not be missed.
        listing.require_answers(listing.unanswered.keys() - positions.keys())
        if is_start and not positions:
            # It would be registered once it has a leader, and begin at its log start.
            listing.require_all_answers(
                {source.topic for source in listing.leaderless if self._begins_at_log_start(source.topic)}
            )
        if self._config.isolates_recreated:
            listing = listing.without_recreated(offsets)
        new = [source for source in listing.ends if source not in positions]
        if not is_start:
            return self.starts_of(new, listing, deadline, is_first_run=False)
        return self.starts_at_mirror_start(new, {source.topic for source in positions}, listing, deadline)

    def _begins_at_log_start(self, topic: str) -> bool:
        """Return whether a topic begins at its log start at the first start of a mirror."""
        rule = routing.first_match(topic, self._config.start_rules)
        return (self._config.start_timestamp_ms if rule is None else rule) == EARLIEST_TIMESTAMP

    def starts_at_mirror_start(
        self, new: Sequence[SourcePartition], mirrored: Collection[str], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """Return the start offsets of `new` partitions. Raises ConfigError.

        `mirrored`: topics of which the map has positions; their new partitions begin at the log start.
        """
        starts = self._starts_by_rule([source for source in new if source.topic not in mirrored], listing, deadline)
        rest = [source for source in new if source not in starts]
        return starts | self.starts_of(rest, listing, deadline, is_first_run=not mirrored)

    def _starts_by_rule(
        self, sources: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        rules = [(pattern, number) for number, (pattern, _) in enumerate(self._config.start_rules)]
        by_rule: dict[int, list[SourcePartition]] = {}
        matched = {topic: routing.first_match(topic, rules) for topic in {source.topic for source in sources}}
        for source in sources:
            number = matched[source.topic]
            if number is not None:
                by_rule.setdefault(number, []).append(source)
        starts: dict[SourcePartition, int] = {}
        for number, members in sorted(by_rule.items()):
            pattern, rule = self._config.start_rules[number]
            if isinstance(rule, int):
                starts |= self._starts_at(rule, members, listing, deadline)
            else:
                starts |= self._explicit_starts(pattern, rule, members, listing, deadline)
        return starts

    def _explicit_starts(
        self, pattern: str, offsets: Mapping[int, int], sources: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """Return the offsets of a rule, aligned to batches.

        Raises ConfigError with every partition without an offset, and every offset that its partition does not have.
        """
        first, problems = self._list_offsets(sources, EARLIEST_TIMESTAMP, deadline), []
        for source in sources:
            name, offset = source.topic_partition, offsets.get(source.partition)
            if offset is None:
                problems.append(f"topics.start: {pattern}: partition {name} has no offset there: add it")
            elif not first[source] <= offset <= listing.ends[source]:
                problems.append(
                    f"topics.start: {pattern}: offset {offset} of {name}: "
                    f"the source has {first[source]} to {listing.ends[source]}"
                )
        for topic in sorted({source.topic for source in sources}):
            partitions = {source.partition for source in sources if source.topic == topic}
            problems += [
                f"topics.start: {pattern}: {topic} has no partition {number}, or it has no leader"
                for number in sorted(offsets.keys() - partitions)
            ]
        if problems:
            raise ConfigError(problems)
        return self.align_to_batch_start({source: offsets[source.partition] for source in sources}, listing, deadline)

    def starts_of(
        self, sources: Iterable[SourcePartition], listing: LogEnds, deadline: Deadline, *, is_first_run: bool
    ) -> dict[SourcePartition, int]:
        """Return the start offsets of partitions: by the configured start on the first run, at their log start later."""
        chosen = list(sources)
        if not is_first_run:
            return self._list_offsets(chosen, EARLIEST_TIMESTAMP, deadline)
        if self._config.start_offsets:
            return self._configured_starts(chosen, listing, deadline)
        return self._starts_at(self._config.start_timestamp_ms, chosen, listing, deadline)

    def _starts_at(
        self, timestamp: int, chosen: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        if timestamp == LATEST_TIMESTAMP:
            return {source: listing.ends[source] for source in chosen}
        listed = self._list_offsets(chosen, timestamp, deadline)
        if timestamp == EARLIEST_TIMESTAMP:
            return listed
        # Offset -1: no record is that new. An offset above the LSO is not visible yet under read_committed.
        starts = {
            source: min(offset, listing.ends[source]) if offset >= 0 else listing.ends[source]
            for source, offset in listed.items()
        }
        return self.align_to_batch_start(starts, listing, deadline)

    def _configured_starts(
        self, sources: Sequence[SourcePartition], listing: LogEnds, deadline: Deadline
    ) -> dict[SourcePartition, int]:
        """Return the starts of the option `startingOffsets`.

        Raises ConfigError as Spark's Kafka source does: every partition needs a start, none may be unknown or beyond the log end.
        """
        configured = self._config.start_offsets
        missing = sorted({str(source.topic_partition) for source in sources} - {str(name) for name in configured})
        unknown = sorted({str(name) for name in configured} - {str(source.topic_partition) for source in sources})
        problems = [f"startingOffsets: {name} has none" for name in missing]
        problems += [f"startingOffsets: there is no partition {name} to read, or it has no leader" for name in unknown]
        problems += [
            f"startingOffsets: {source.topic_partition}: {configured[source.topic_partition]} is beyond the log's end {end}"
            f", as {self._config.isolation.value} sees it"
            for source in sorted(sources)
            if (end := listing.ends[source]) < configured.get(source.topic_partition, end)
        ]
        if problems:
            raise ConfigError(problems)
        log_starts = self._list_offsets(sources, EARLIEST_TIMESTAMP, deadline)
        starts = {}
        for source in sources:
            offset = configured[source.topic_partition]
            starts[source] = (
                log_starts[source] if offset == EARLIEST_TIMESTAMP else listing.ends[source] if offset < 0 else offset
            )
        # A start below the log start stays as it is: whoever reads the range reports the data loss.
        available = {source: start for source, start in starts.items() if start > log_starts[source]}
        return starts | self.align_to_batch_start(available, listing, deadline)

    def first_batches(
        self, starts: Offsets, listing: LogEnds, deadline: Deadline
    ) -> Iterator[tuple[SourcePartition, FirstBatch]]:
        """Yield the batch that holds or follows each start below its end, in the order of arrival."""
        by_name = {source.topic_partition: source for source in starts if starts[source] < listing.ends.get(source, 0)}
        if not by_name:
            return
        seen: set[SourcePartition] = set()
        ranges = [
            ReadRange(
                topic_partition=name,
                position=starts[source],
                end=starts[source] + 1,
                bytes_per_offset=UNKNOWN_BYTES_PER_OFFSET,
                topic_id=source.topic_id,
            )
            for name, source in sorted(by_name.items())
        ]
        reader = RangeReader(
            self._cluster, ranges, isolation=self._config.isolation, fetch_bytes=_SAMPLE_FETCH_BYTES, deadline=deadline
        )
        for response in reader:
            for fetched in response:
                source = by_name[fetched.topic_partition]
                if len(fetched.index) > 0 and source not in seen:
                    seen.add(source)
                    yield (
                        source,
                        FirstBatch(
                            base_offset=int(fetched.index.headers["base_offset"][0]),
                            next_offset=int(fetched.index.last_offset[0]) + 1,
                            size_bytes=int(fetched.index.size_bytes[0]),
                        ),
                    )

    def sample(self, starts: Offsets, listing: LogEnds, deadline: Deadline) -> dict[SourcePartition, float]:
        """Return bytes per offset by the first batch, of the partitions that answer soon.

        An estimate, so errors are only logged: whoever reads the range raises them.
        """
        sampled: dict[SourcePartition, float] = {}
        try:
            for source, batch in self.first_batches(starts, listing, deadline.sooner(_SAMPLE_MS)):
                sampled[source] = batch.bytes_per_offset
        except MirrorError as error:
            _log.info("sampled the batches of %d of %s: %s", len(sampled), counted(len(starts), "partition"), error)
        return sampled

    def align_to_batch_start(self, starts: Offsets, listing: LogEnds, deadline: Deadline) -> dict[SourcePartition, int]:
        """Return `starts`, those inside a batch lowered to its base offset, or to the log start inside it.

        Raises RetriableError for a start that is gone since it was listed, as by retention: it has to be looked for again.
        """
        try:
            batches = list(self.first_batches(starts, listing, deadline))
        except DataLossError as loss:
            raise RetriableError("OFFSET_OUT_OF_RANGE", str(loss)) from loss
        base_offsets = {source: batch.base_offset for source, batch in batches if batch.base_offset < starts[source]}
        # DeleteRecords may have moved the log start into the batch: below it nothing can be fetched.
        log_starts = self.log_starts(base_offsets, deadline)
        aligned = {source: max(base_offset, log_starts.get(source, 0)) for source, base_offset in base_offsets.items()}
        for source, offset in aligned.items():
            if offset < starts[source]:
                _log.info("%s: start %d lies inside a batch: moved down to %d", source.topic_partition, starts[source], offset)
        return {**starts, **aligned}

    def _included(self, listed: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
        config = self._config
        return {
            name: topic
            for name, topic in listed.items()
            if topic.error_code == 0
            and topic.topic_id not in config.forgotten
            and routing.is_included(name, config.include, config.exclude, is_internal=topic.is_internal)
        }

    def high_watermarks(self, sources: Iterable[SourcePartition], deadline: Deadline) -> dict[SourcePartition, int]:
        return self._list_offsets(sources, LATEST_TIMESTAMP, deadline)

    def log_starts(self, sources: Iterable[SourcePartition], deadline: Deadline) -> dict[SourcePartition, int]:
        return self._list_offsets(sources, EARLIEST_TIMESTAMP, deadline)

    def _list_offsets(self, sources: Iterable[SourcePartition], timestamp: int, deadline: Deadline) -> dict[SourcePartition, int]:
        by_name: dict[TopicPartition, SourcePartition] = {source.topic_partition: source for source in sources}
        if not by_name:
            return {}
        listed = self._cluster.list_offsets(dict.fromkeys(by_name, timestamp), IsolationLevel.READ_UNCOMMITTED, deadline)
        return {by_name[name]: entry.offset for name, entry in listed.items()}
