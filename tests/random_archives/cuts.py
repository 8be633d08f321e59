"""Pure: what a restore up to a cut has to write, by the truth of a history: the oracle of restores."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.random_archives.documented_reader import VISIBLE, Row
from tests.random_archives.features import Feature
from tests.random_archives.histories import Archived, ArchiveHistory, Decision
from tests.random_archives.source_logs import LogRecord, SourceLog
from tests.random_archives.whole_ends import NO_END, Part, whole_ends

from shallow_mirror.types import SourcePartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a restore file asks for. At most one of `time_ms`, `decision` and `offsets`; `topics`: names to include."""

    topics: tuple[str, ...]
    time_ms: int | None = None
    decision: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lineage: int | None = None
    whole_transactions: bool = False
    is_committed_only: bool = True

    def until(self) -> dict[str, Any]:
        """Return the section `until` of the restore file."""
        until: dict[str, Any] = {"whole_transactions": self.whole_transactions}
        if self.time_ms is not None:
            until["time"] = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        if self.decision is not None:
            until["decision"] = self.decision
        if self.offsets:
            until["offsets"] = {topic: dict(partitions) for topic, partitions in self.offsets.items()}
        if self.lineage is not None:
            until["lineage"] = self.lineage
        return until


@dataclass(frozen=True, slots=True)
class ExpectedLog:
    """What is restored of a partition: `records` of [start, end) of the log of `lineage`.

    `open_offsets`: of transactions whose outcome the archive does not know at the cut: they may be there or not. `is_optional`: the
    partition itself was not archived before the time of the cut.
    """

    lineage: int
    start: int
    end: int
    records: Sequence[LogRecord]
    open_offsets: frozenset[int] = frozenset()
    is_optional: bool = False
    log_start: int = 0
    """Where a preserved log begins: behind what had expired in front of all."""


@dataclass(frozen=True, slots=True)
class Expected:
    """`refusal`: why the restore has to be refused. `is_empty`: nothing is in front of the cut, which may be refused as well."""

    logs: Mapping[SourcePartition, ExpectedLog] = field(default_factory=dict)
    refusal: str | None = None
    is_empty: bool = False
    features: frozenset[Feature] = frozenset()


@dataclass(slots=True)
class _View:
    """The log of one partition in one lineage, as the archive has it at the end and at the cut."""

    source: SourcePartition
    lineage: int
    log: SourceLog
    archived: Archived
    final_end: int
    start: int
    deleted_end: int | None
    lost: list[tuple[int, int]]
    is_optional: bool = False

    def records(self, end: int, *, is_committed_only: bool = True) -> list[LogRecord]:
        return [
            record
            for record in self.log.records(self.start, end, is_committed_only=is_committed_only)
            if not any(first <= record.offset < behind for first, behind in self.lost)
        ]

    def log_start(self, end: int) -> int:
        """Return where the log begins, behind offsets that had expired."""
        start = self.start
        for first, behind in sorted(self.lost):
            start = behind if first <= start < behind else start
        return max(min(self.start, end), min(start, end))


class Oracle:
    """Of one history. `rows`: of the archive's table, for what retention has deleted."""

    def __init__(self, history: ArchiveHistory, rows: Iterable[Row]) -> None:
        self._history = history
        self._deleted = [row for row in rows if row.state != VISIBLE]

    # --- which logs ---

    def decision_at(self, number: int | None) -> Decision:
        """Return the newest decision up to a number."""
        decisions = self._history.decisions
        return decisions[-1] if number is None else max((d for d in decisions if d.number <= number), key=lambda d: d.number)

    def newest_topics(self, decision: int | None = None) -> dict[str, str]:
        """Return the topic id that each topic had last, at a decision."""
        order = {topic.topic_id: number for number, topic in enumerate([*self._history.deleted, *self._history.topics.values()])}
        newest: dict[str, str] = {}
        for source in sorted(self.decision_at(decision).positions, key=lambda source: order[source.topic_id]):
            newest[source.topic] = source.topic_id
        return newest

    def view(self, source: SourcePartition, lineage: int | None = None, decision: int | None = None) -> _View:
        """Return the log of a partition; `lineage` None: the newest at the decision."""
        history = self._history
        up_to = [each for each in history.decisions if source in each.positions and (decision is None or each.number <= decision)]
        wanted = [each.positions[source] for each in up_to if lineage is None or each.positions[source].lineage <= lineage]
        archived = wanted[-1]
        final = [each.positions[source] for each in history.decisions if source in each.positions]
        final_end = [each.end for each in final if each.lineage == archived.lineage][-1]
        deleted_end = self._deleted_end(source, archived.lineage)
        start = history.lineage_starts[source, 0]
        if archived.lineage:
            start = min(history.lineage_starts[source, number] for number in range(archived.lineage + 1))
        return _View(
            source,
            archived.lineage,
            history.logs[source, archived.lineage],
            archived,
            final_end,
            start if deleted_end is None else deleted_end,
            deleted_end,
            [
                (first, min(behind, self._clip(source, number, archived.lineage)))
                for lost_source, number, first, behind in history.lost
                if lost_source == source and number <= archived.lineage
            ],
        )

    def _clip(self, source: SourcePartition, lineage: int, newest: int) -> int:
        starts = [self._history.lineage_starts[source, number] for number in range(lineage + 1, newest + 1)]
        return min(starts, default=1 << 62)

    def _deleted_end(self, source: SourcePartition, lineage: int) -> int | None:
        ends = [
            min(row.end, clip)
            for row in self._deleted
            if SourcePartition(*row.source) == source
            and row.lineage <= lineage
            and row.start < (clip := self._clip(source, row.lineage, lineage))
        ]
        return max(ends, default=None)

    # --- time ---

    def _topics_at(self, time_ms: int, topics: Sequence[str], features: set[Feature]) -> dict[str, str]:
        """Return the topic id that each topic had at a time."""
        chosen: dict[str, str] = {}
        for topic in topics:
            seen: dict[str, tuple[int, int]] = {}
            for (source, lineage), times in self._history.first_seen.items():
                if source.topic == topic and lineage == 0:
                    seen[source.topic_id] = min(times, seen.get(source.topic_id, times))
            if not seen:
                continue
            ordered = sorted(seen.items(), key=lambda entry: entry[1])
            chosen[topic] = ordered[0][0]
            for topic_id, (at_ms, before_ms) in ordered[1:]:
                if before_ms <= time_ms < at_ms:
                    features.add(Feature.TIME_OF_TOPIC)
                if at_ms <= time_ms or (before_ms <= time_ms and self._has_record_until(topic, topic_id, time_ms)):
                    chosen[topic] = topic_id
        return chosen

    def _has_record_until(self, topic: str, topic_id: str, time_ms: int) -> bool:
        sources = [source for source in self.decision_at(None).positions if (source.topic, source.topic_id) == (topic, topic_id)]
        views = [self.view(source) for source in sources]
        return any(record.timestamp_ms <= time_ms for view in views for record in view.records(view.archived.end))

    def _lineage_at(self, source: SourcePartition, time_ms: int, features: set[Feature]) -> int:
        newest = self.view(source).lineage
        chosen = 0
        for number in range(1, newest + 1):
            at_ms, before_ms = self._history.first_seen[source, number]
            view = self.view(source, number)
            first = self._history.lineage_starts[source, number]
            own = [record for record in view.records(view.archived.end) if record.offset >= first]
            if before_ms <= time_ms < at_ms:
                features.add(Feature.TIME_OF_LINEAGE)
            if at_ms <= time_ms or (before_ms <= time_ms and any(record.timestamp_ms <= time_ms for record in own)):
                chosen = number
        return chosen

    # --- what is restored ---

    def expected(self, cut: Cut) -> Expected:
        """Return what a restore has to write."""
        features: set[Feature] = set()
        missing = set(cut.topics) - {source.topic for source in self.decision_at(cut.decision).positions}
        if missing:
            return Expected(refusal=f"the archive had no topic {min(missing)} yet")
        views = self._views(cut, features)
        if not views:
            return Expected(refusal="no topic", features=frozenset(features))
        ends: dict[SourcePartition, int] = {}
        for source, view in views.items():
            end = self._end_of(view, cut, features)
            if isinstance(end, str):
                return Expected(refusal=f"{source.topic_partition}: {end}", features=frozenset(features))
            ends[source] = end
        is_empty = cut.time_ms is not None and not any(
            view.records(ends[source], is_committed_only=cut.is_committed_only) for source, view in views.items()
        )
        if cut.whole_transactions:
            ends = self._whole(views, ends, features)
        logs = {
            source: ExpectedLog(
                view.lineage,
                min(view.start, ends[source]),
                ends[source],
                view.records(ends[source], is_committed_only=cut.is_committed_only),
                view.log.records_of(view.archived.undecided),
                view.is_optional,
                view.log_start(ends[source]),
            )
            for source, view in views.items()
        }
        return Expected(logs, is_empty=is_empty, features=frozenset(features))

    def _views(self, cut: Cut, features: set[Feature]) -> dict[SourcePartition, _View]:
        if cut.time_ms is not None:
            topics = self._topics_at(cut.time_ms, cut.topics, features)
        else:
            topics = {name: topic_id for name, topic_id in self.newest_topics(cut.decision).items() if name in cut.topics}
        views: dict[SourcePartition, _View] = {}
        for source in self.decision_at(cut.decision).positions:
            if topics.get(source.topic) != source.topic_id:
                continue
            if cut.offsets and source.partition not in cut.offsets.get(source.topic, {}):
                continue
            lineage = cut.lineage
            at_ms, before_ms = self._history.first_seen[source, 0]
            if cut.time_ms is not None and before_ms <= cut.time_ms < at_ms:
                features.add(Feature.TIME_OF_TOPIC)
            if cut.time_ms is not None and lineage is None:
                lineage = self._lineage_at(source, cut.time_ms, features)
            views[source] = self.view(source, lineage, cut.decision)
            views[source].is_optional = cut.time_ms is not None and at_ms > cut.time_ms
        return views

    def _end_of(self, view: _View, cut: Cut, features: set[Feature]) -> int | str:
        """Return where a partition ends; a text: why the cut is refused."""
        end = max(view.archived.end, view.start)
        if cut.offsets:
            wanted = cut.offsets[view.source.topic][view.source.partition]
            return wanted if view.start <= wanted <= end else "the offset is not in the archive"
        at_cut = view.archived.end
        if cut.time_ms is not None:
            time_ms = cut.time_ms
            both = [
                next(
                    (record.offset for record in view.records(end, is_committed_only=seen) if record.timestamp_ms > time_ms), None
                )
                for seen in (True, False)
            ]
            if both[0] != both[1] and cut.is_committed_only:
                features.add(Feature.ABORTED_AT_CUT)
            newer = both[0 if cut.is_committed_only else 1]
            end = end if newer is None else newer
            at_cut = at_cut if newer is None else newer
        if (cut.time_ms is not None or cut.decision is not None) and at_cut <= view.start:
            if view.deleted_end is not None and (at_cut < view.deleted_end or at_cut <= view.deleted_end < view.final_end):
                return "it has expired"
            registered_ms = self._history.first_seen[view.source, 0][0]
            if cut.time_ms is not None and view.start > 0 and at_cut < view.final_end and cut.time_ms < registered_ms:
                return "the archive began after the cut"
        return max(end, view.start)

    def _whole(
        self, views: Mapping[SourcePartition, _View], ends: Mapping[SourcePartition, int], features: set[Feature]
    ) -> dict[SourcePartition, int]:
        parts: list[Part] = []
        aborted: set[tuple[SourcePartition, int]] = set()
        for source, view in views.items():
            archived = [
                batch
                for batch in view.log.between(view.start, view.final_end)
                if batch.txn is not None
                and any(not any(a <= o < b for a, b in view.lost) for o in range(batch.base_offset, batch.end_offset))
            ]
            for part in view.log.parts.values():
                own = [batch for batch in archived if batch.txn == part.key]
                if not own:
                    continue
                # Without its marker more of a transaction may follow, unless a later epoch of the producer does.
                is_ended = (part.marker_offset is not None and part.marker_offset < view.final_end) or any(
                    batch.txn is not None
                    and batch.base_offset > own[-1].base_offset
                    and (later := view.log.parts[batch.txn]).producer_id == part.producer_id
                    and later.producer_epoch != part.producer_epoch
                    for batch in archived
                )
                if not is_ended or view.lineage:
                    features.add(Feature.WHOLE_WITHOUT_MARKER)
                if part.is_committed is False:
                    aborted.add((source, part.producer_id))
                    continue
                if (source, part.producer_id) in aborted:
                    features.add(Feature.WHOLE_BEHIND_ABORTED)
                parts.append(Part(source, own[0].base_offset, own[-1].end_offset if is_ended else NO_END, part.name))
        lowered = whole_ends(ends, parts)
        return {source: max(views[source].start, end) for source, end in lowered.items()}


def random_cut(chance: random.Random, history: ArchiveHistory, oracle: Oracle) -> Cut:
    """Return what a restore file might ask of this archive."""
    names = sorted({source.topic for source in oracle.decision_at(None).positions})
    topics = tuple(names) if chance.random() < 0.6 else tuple(sorted(chance.sample(names, chance.randint(1, len(names)))))
    options: dict[str, Any] = {"topics": topics, "is_committed_only": chance.random() < 0.85}
    # What belongs together is known for producers with an epoch of their own, and around the cut.
    options["whole_transactions"] = history.versions == "own epochs" and not history.retention and chance.random() < 0.5
    kind = chance.choice(("none", "time", "time", "decision", "decision", "offsets", "lineage"))
    if kind == "time":
        return Cut(**options, time_ms=_random_time(chance, history))
    if kind == "decision":
        return Cut(**options, decision=chance.choice(history.decisions).number)
    if kind == "offsets":
        return Cut(**options, offsets=_random_offsets(chance, oracle, topics))
    if kind == "lineage":
        highest = max(oracle.view(source).lineage for source in _newest_sources(oracle, topics))
        return Cut(**options, lineage=chance.randint(0, highest))
    return Cut(**options)


def _newest_sources(oracle: Oracle, topics: Sequence[str]) -> list[SourcePartition]:
    newest = oracle.newest_topics()
    sources = oracle.decision_at(None).positions
    return [source for source in sources if source.topic in topics and newest[source.topic] == source.topic_id]


def _random_time(chance: random.Random, history: ArchiveHistory) -> int:
    at_ms = chance.choice(history.decisions).at_ms
    stamps = [record.timestamp_ms for log in history.logs.values() for batch in log.batches for record in batch.records]
    if stamps and chance.random() < 0.5:
        at_ms = max(0, chance.choice(stamps))
    first, last = history.decisions[0].at_ms, history.decisions[-1].at_ms
    return chance.choice(
        (at_ms, at_ms, max(0, at_ms + chance.choice((-1, 1))), chance.randint(first, last), last + 90_000, first - 1)
    )


def _random_offsets(chance: random.Random, oracle: Oracle, topics: Sequence[str]) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    sources = _newest_sources(oracle, topics)
    for source in chance.sample(sources, chance.randint(1, len(sources))):
        view = oracle.view(source)
        end = max(view.start, view.archived.end)
        offsets.setdefault(source.topic, {})[source.partition] = chance.randint(view.start, end)
    return offsets
