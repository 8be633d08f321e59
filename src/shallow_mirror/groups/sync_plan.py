"""Driver and reading commands: look at the groups of one cluster, translate their offsets in one go, commit them on the other.

Order matters: the offsets are read before the map, so that a record which a group has read on the target is in the map, settled
or not, when it is looked for. What a group has on the other cluster is read right before it is committed there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shallow_mirror.broker.admin.consumer_groups import CommittedOffset
from shallow_mirror.broker.produce.receipts import is_receipt
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.table_protocol import Comparison, Condition
from shallow_mirror.config import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MirrorConfig
from shallow_mirror.errors import ConfigError, OutcomeUnknownError
from shallow_mirror.groups.eligibility import Clusters, Held, There, commits_of, judge, may_commit, next_step
from shallow_mirror.groups.group_client import ClusterView
from shallow_mirror.groups.offset_translation import COMMIT_COLUMNS, Commit, CommitTranslator, RepeatCounter, Side
from shallow_mirror.groups.report import Group, GroupPartition, Step
from shallow_mirror.sinks import routing
from shallow_mirror.sinks.kafka.targets.mirror_registration import Origin
from shallow_mirror.types import SourcePartition, TopicPartition


@dataclass(frozen=True, slots=True)
class Committed:
    """An offset of a group on the origin. `topic_id`: of the source's topic then; None: the one that the topic has now."""

    group: str
    place: TopicPartition
    offset: int | None
    metadata: str
    topic_id: str | None = None


class GroupLook:
    """`side` is the origin: the source, or the target when failing back. Not for several threads."""

    def __init__(self, config: MirrorConfig, side: Side = "source", *, timeout_s: float | None = None) -> None:
        self._config, self.side = config, side
        self.source = ClusterView(config.source.client, config.source_cluster_name, timeout_s)
        self.target = ClusterView(config.target.client, config.target_cluster_name, timeout_s)
        self.origin, self.other = (self.source, self.target) if side == "source" else (self.target, self.source)

        self._active: set[str] = set()

    def close(self) -> None:
        self.source.close()
        self.target.close()

    def require(self, view: ClusterView, offset_map: OffsetMap) -> None:
        """Raises RetriableError where it does not answer, ConfigError where it is not the cluster that the map is of."""
        if view is self.source:
            offset_map.require_clusters(source=view.cluster_id())
        else:
            offset_map.require_clusters(target=view.cluster_id())

    def committed(self, is_wanted: Callable[[str], bool]) -> list[Committed]:
        """Of all groups that the mirror file includes and `is_wanted` lets pass, but for what mirrors commit for themselves."""
        listed = self.origin.listed()
        names = [one for one in sorted(listed) if self._config.groups.is_included(one) and is_wanted(one)]
        self._active = {one for one in names if not listed[one].is_free}
        return [
            Committed(group, one.topic_partition, one.offset, one.metadata)
            for group, offsets in self.origin.committed(names).items()
            if not any(is_receipt(one.metadata) or Origin.parse(one.metadata) is not None for one in offsets)
            for one in offsets
        ]

    def held(self, committed: Iterable[Committed], offset_map: OffsetMap) -> list[Held]:
        """With the incarnation of the source partition that each is of."""
        committed = list(committed)
        if self.side == "target":
            return self._held_on_target(committed, offset_map)
        unknown = {one.place.topic for one in committed if one.topic_id is None}
        topics = self._config.topics
        reasons = {topic: _left_out(topic, is_included=topics.is_included(topic)) for topic in unknown}
        ids = self.source.topic_ids(topic for topic in unknown if not reasons[topic])
        held = []
        for one in committed:
            topic_id = one.topic_id or ids.get(one.place.topic)
            source = None if topic_id is None else SourcePartition(one.place.topic, topic_id, one.place.partition)
            reason = "" if source is not None else reasons[one.place.topic] or "the source does not show such a topic"
            held.append(Held(one.group, one.place, one.offset, one.metadata, source, reason))
        return held

    def _held_on_target(self, committed: Sequence[Committed], offset_map: OffsetMap) -> list[Held]:
        sources: defaultdict[TopicPartition, list[SourcePartition]] = defaultdict(list)
        for source, position in offset_map.positions().items():
            sources[position.target.topic_partition].append(source)
        ids = self.source.topic_ids(one.topic for committed_one in committed for one in sources.get(committed_one.place, ()))
        held = []
        for one in committed:
            known = sources.get(one.place, [])
            current = next((source for source in known if ids.get(source.topic) == source.topic_id), None)
            reason = "this mirror does not write there"
            if known and current is None:
                reason = f"the source has no topic {known[0].topic} any more that is in the map"
            held.append(Held(one.group, one.place, one.offset, one.metadata, current, "" if current is not None else reason))
        return held

    def clusters(self, held: Sequence[Held], offset_map: OffsetMap, *, asks_origin: bool = True) -> Clusters:
        """Where logs begin on the origin, and what may still be removed of what it shows. Before the translation."""
        places = {one.place for one in held if one.source is not None}
        unsettled: dict[TopicPartition, int] = {}
        for row in offset_map.unsettled_rows() if self.side == "target" else ():
            start, place = row.segment.target_start, row.segment.target.topic_partition
            if start is not None:
                unsettled[place] = min(start, unsettled.get(place, start))
        return Clusters(origin_starts=self.origin.offsets(places, EARLIEST_TIMESTAMP) if asks_origin else {}, unsettled=unsettled)

    def judged(self, held: Iterable[Held], translator: CommitTranslator, clusters: Clusters) -> list[GroupPartition]:
        """Asks the other cluster about the logs that offsets lead to."""
        lines = translator.lines()
        held = list(held)
        sources = {one.source for one in held if one.source is not None}
        targets = {lines[one].target.topic_partition for one in sources if one in lines}
        places = targets if self.side == "source" else {one.topic_partition for one in sources}
        ids = self.other.topic_ids(one.topic for one in places)
        clusters = replace(
            clusters,
            other_ids=ids,
            other_starts=self.other.offsets(places, EARLIEST_TIMESTAMP),
            other_ends=self.other.offsets(places, LATEST_TIMESTAMP),
        )
        return [judge(one, translator, lines, clusters, self.side) for one in held]

    def stepped(self, judged: Sequence[GroupPartition], *, is_applied: bool, is_forced: bool = False) -> Iterator[Group]:
        """Compares with what the groups have on the other cluster, and commits there if `is_applied`, one after the other."""
        by_group: defaultdict[str, list[GroupPartition]] = defaultdict(list)
        for one in judged:
            by_group[one.group].append(one)
        listed = self.other.listed() if by_group else {}
        may_hide = not by_group.keys() <= listed.keys() and self.other.may_hide_groups()
        for name, partitions in sorted(by_group.items()):
            found = listed.get(name)
            committed, refused = self._committed_there(name) if found is not None or may_hide else ((), None)
            has = {one.topic_partition: one.offset for one in committed}
            is_free = found is None or found.is_free
            clients = () if is_free else self.other.clients(name)
            steps = [next_step(one, There(is_free, clients, has), is_forced=is_forced) for one in partitions]
            if refused is not None:
                steps = [replace(one, step=Step.REFUSED, reason=refused) if one.step is Step.TO_COMMIT else one for one in steps]
            if is_applied:
                steps = self._commit(name, steps)
            state = found.state.lower() if found is not None else "not there yet" if refused is None else "hidden"
            is_active = name in self._active
            yield Group(name=name, partitions=tuple(steps), state=state, clients=clients, is_active_at_origin=is_active)

    def _committed_there(self, group: str) -> tuple[tuple[CommittedOffset, ...], str | None]:
        """And what to grant, where the other cluster hides the group from us."""
        try:
            return self.other.committed([group])[group], None
        except ConfigError as error:
            return (), str(error)

    def _commit(self, group: str, steps: Sequence[GroupPartition]) -> list[GroupPartition]:
        offsets = {
            one.to_place: (one.to_offset, one.metadata)
            for one in steps
            if one.step is Step.TO_COMMIT and one.to_place is not None and one.to_offset is not None
        }
        if not offsets:
            return list(steps)
        try:
            refused = self.other.commit(group, offsets)
        except OutcomeUnknownError as error:
            refused = dict.fromkeys(offsets, f"{error}: it may have been committed, ask again")
        return [
            replace(one, step=Step.REFUSED, reason=refused[one.to_place])
            if one.step is Step.TO_COMMIT and one.to_place in refused
            else replace(one, step=Step.COMMITTED, has=one.to_offset)
            if one.step is Step.TO_COMMIT
            else one
            for one in steps
        ]


def add_rows(translator: CommitTranslator | RepeatCounter, offset_map: OffsetMap, topics: Collection[str], first: int) -> None:
    """Rows of settled decisions from micro-batch `first` on."""
    of_topic: Condition = (Comparison("source_topic", "=", next(iter(topics))),) if len(topics) == 1 else ()
    recent: Condition = (Comparison("micro_batch", ">", first - 1),) if first > 0 else ()
    for rows in offset_map.settled_pieces((*of_topic, *recent), COMMIT_COLUMNS) if topics else ():
        translator.add(rows)


def translate(held: Sequence[Held], clusters: Clusters, offset_map: OffsetMap, side: Side) -> CommitTranslator:
    commits = commits_of(held, clusters)
    translator = CommitTranslator(commits, side)
    add_rows(translator, offset_map, {one.source.topic for one in commits}, 0)
    return translator


def with_repeats(
    judged: Sequence[GroupPartition], translator: CommitTranslator, offset_map: OffsetMap, side: Side
) -> list[GroupPartition]:
    """How many records each would read twice: none, but where something was released from quarantine."""
    places = {
        Commit(one.source, one.offset): one.to_offset
        for one in judged
        if may_commit(one, is_forced=False) and one.source is not None and one.offset is not None and one.to_offset is not None
    }
    counter = RepeatCounter(places, side)
    if translator.may_repeat():
        add_rows(counter, offset_map, {one.source.topic for one in places}, 0)
    return [
        replace(one, repeats=counter.counts[Commit(one.source, one.offset)])
        if may_commit(one, is_forced=False) and one.source is not None and one.offset is not None
        else one
        for one in judged
    ]


def _left_out(topic: str, *, is_included: bool) -> str:
    if is_included:
        return ""
    if topic.startswith(routing.INTERNAL_PREFIX):
        return "internal topics are never mirrored"
    return "topics.include and topics.exclude leave this topic out"
