"""Driver and commands: read the groups of one cluster, translate their offsets in bulk, commit them on the other.

The offsets are read before the map, so that a record which a group has read on the target is in the map, settled or not. What a
group has on the other cluster is read right before it is committed there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from shallow_mirror import routing
from shallow_mirror.broker import METADATA_TOO_LARGE, BegunOffsets, CommittedOffset, ListedGroup
from shallow_mirror.broker.produce import is_receipt
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.runs import RowNote
from shallow_mirror.checkpoints.logs.topics import ForgottenTopics
from shallow_mirror.checkpoints.tables import Comparison, Condition
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.groups.eligibility import Clusters, RemoteGroup, SourceCommit, commits_of, evaluate, may_commit, next_step
from shallow_mirror.groups.group_client import AT_ONCE, GroupClient
from shallow_mirror.groups.offset_translation import COMMIT_COLUMNS, Commit, CommitTranslator, RepeatCounter, Side
from shallow_mirror.groups.report import Group, GroupPartition, Step
from shallow_mirror.groups.transactional_commits import TransactionalCommits
from shallow_mirror.sinks.kafka import NewestControl, Origin
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, SourcePartition, TopicPartition

COMMIT_TIMEOUT_MS = 60_000
"""Timeout of transactions that commit offsets. Of a process that was killed, they keep consumers of the groups waiting."""


class Committed(NamedTuple):
    """An offset of a group on the origin. `topic_id`: of the source's topic then; None: the one that the topic has now."""

    group: str
    topic_partition: TopicPartition
    offset: int | None
    metadata: str
    topic_id: str | None = None


class GroupCommits:
    """Evaluates offsets and commits them on one cluster, `other`. `side` is where they come from. Not thread-safe."""

    def __init__(self, other: GroupClient, side: Side = "source") -> None:
        self.other = other
        self.side: Side = side
        self._active: set[str] = set()

    def evaluate(
        self,
        source_commits: Iterable[SourceCommit],
        translator: CommitTranslator,
        clusters: Clusters,
        *,
        waits_for_leaders: bool = True,
    ) -> list[GroupPartition]:
        """Evaluate the offsets, with the logs of the other cluster that they lead to.

        `waits_for_leaders`: raise RetriableError where one of these logs has no leader; else only its offsets wait.
        """
        lines = translator.lines()
        source_commits = list(source_commits)
        sources = {commit.source for commit in source_commits if commit.source is not None}
        targets = {lines[source].target.topic_partition for source in sources if source in lines}
        topic_partitions = targets if self.side == "source" else {source.topic_partition for source in sources}
        ids = self.other.topic_ids(topic_partition.topic for topic_partition in topic_partitions)
        if waits_for_leaders:
            starts = self.other.offsets(topic_partitions, EARLIEST_TIMESTAMP)
            ends, unanswered = self.other.offsets(topic_partitions, LATEST_TIMESTAMP), dict[TopicPartition, str]()
        else:
            starts, ends, unanswered = self.other.known_ranges(topic_partitions)
        clusters = replace(clusters, other_ids=ids, other_starts=starts, other_ends=ends, unanswered=unanswered)
        return [evaluate(commit, translator, lines, clusters, self.side) for commit in source_commits]

    def plan_commits(
        self,
        evaluated: Sequence[GroupPartition],
        *,
        is_applied: bool,
        is_forced: bool = False,
        handed_over: Callable[[], Collection[str]] = lambda: (),
        known: Mapping[str, ListedGroup] | None = None,
        waits_for_coordinators: bool = True,
    ) -> Iterator[Group]:
        """Compare with the groups on the other cluster, and commit there if `is_applied`, group by group.

        `handed_over` returns source topics of which offsets are the groups' own there, and stay. It is called when it is known
        what groups have there: an operator may reset them as soon as a topic is handed over.
        `known`: the groups as they were listed a moment ago, in place of listing them; the broker refuses offsets of a group
        that has members since.
        `waits_for_coordinators`: raise RetriableError, behind the other groups, where the coordinator of one does not answer;
        else only its offsets wait.
        """
        unanswered: RetriableError | None = None
        by_group: defaultdict[str, list[GroupPartition]] = defaultdict(list)
        for partition in evaluated:
            by_group[partition.group].append(partition)
        listed = known if known is not None else self.other.reported() if by_group else {}
        names = sorted(by_group)
        for first in range(0, len(names), AT_ONCE):
            piece = names[first : first + AT_ONCE]
            # Many requests are on their way at once: one after the other would take as many round trips.
            # Of groups that are not listed as well: some are hidden, and no broker lists those of a coordinator that moves. None
            # of groups that read nothing that the other cluster has.
            begun = self.other.begin_committed([name for name in piece if any(map(_leads_there, by_group[name]))])
            planned = {}
            for name in piece:
                try:
                    committed, refused = self._remote_offsets(name, begun[name]) if name in begun else ((), None)
                except RetriableError as error:
                    unanswered, committed, refused = error, (), f"{error}: try again"
                remote = listed.get(name)
                is_free = remote is None or remote.is_free
                clients = () if is_free else self.other.clients(name)
                at_other = RemoteGroup(is_free, clients, {offset.topic_partition: offset.offset for offset in committed})
                steps = [next_step(partition, at_other, is_forced=is_forced) for partition in by_group[name]]
                if refused is not None:
                    steps = [_refused(partition, refused) for partition in steps]
                is_new = refused is None and not committed
                state = remote.state.lower() if remote is not None else "not there yet" if is_new else "hidden"
                planned[name] = Group(
                    name=name,
                    partitions=tuple(steps),
                    state=state,
                    clients=clients,
                    is_active_at_origin=name in self._active,
                )
            moving = handed_over()
            if moving:
                planned = {name: _without_moving(group, moving) for name, group in planned.items()}
            yield from self._commit_all(planned) if is_applied else planned.values()
        if waits_for_coordinators and unanswered is not None:
            raise unanswered
        if is_applied:
            self.other.finish_commits()

    def _remote_offsets(self, group: str, begun: BegunOffsets) -> tuple[tuple[CommittedOffset, ...], str | None]:
        """Return the offsets, and what to grant where the other cluster hides the group from us."""
        try:
            return self.other.finish_committed(group, begun), None
        except ConfigError as error:
            return (), str(error)

    def _commit_all(self, groups: Mapping[str, Group]) -> Iterator[Group]:
        offsets = {name: offsets for name, group in groups.items() if (offsets := _to_commit(group.partitions))}
        refused = self.other.commit_together(offsets)
        # The offset matters more than what an application noted beside it.
        without_metadata = {
            name: {place: (offsets[name][place][0], "") for place in places}
            for name, reasons in refused.items()
            if (places := [place for place, why in reasons.items() if why == METADATA_TOO_LARGE])
        }
        still_refused = self.other.commit_together(without_metadata) if without_metadata else {}
        for name, group in groups.items():
            again = without_metadata.get(name, {})
            left = {place: why for place, why in refused.get(name, {}).items() if place not in again}
            left |= still_refused.get(name, {})
            yield replace(group, partitions=tuple(_committed(step, left, again) for step in group.partitions))


_HANDED_OVER = "the topic was handed over, and the group's offsets there are its own; --force commits this one"


def _leads_there(partition: GroupPartition) -> bool:
    return partition.to_topic_partition is not None


def _refused(partition: GroupPartition, reason: str) -> GroupPartition:
    return partition._replace(step=Step.REFUSED, reason=reason) if partition.step is Step.TO_COMMIT else partition


def _without_moving(group: Group, moving: Collection[str]) -> Group:
    return replace(
        group,
        partitions=tuple(
            _refused(partition, _HANDED_OVER) if partition.source is not None and partition.source.topic in moving else partition
            for partition in group.partitions
        ),
    )


def _committed(
    partition: GroupPartition, refused: Mapping[TopicPartition, str], without_metadata: Collection[TopicPartition]
) -> GroupPartition:
    place = partition.to_topic_partition
    if partition.step is not Step.TO_COMMIT or place is None:
        return partition
    if place in refused:
        return partition.with_step(Step.REFUSED, partition.has, refused[place])
    reason = f"committed without its metadata: {METADATA_TOO_LARGE}" if place in without_metadata else None
    return partition.with_step(Step.COMMITTED, partition.to_offset, reason)


def _to_commit(steps: Iterable[GroupPartition]) -> dict[TopicPartition, tuple[int, str]]:
    return {
        partition.to_topic_partition: (partition.to_offset, partition.metadata)
        for partition in steps
        if partition.step is Step.TO_COMMIT and partition.to_topic_partition is not None and partition.to_offset is not None
    }


class GroupOffsets(GroupCommits):
    """The offsets of all groups. `side` is the origin: the source, or the target when failing back. Not thread-safe."""

    def __init__(
        self,
        config: MirrorConfig,
        side: Side = "source",
        *,
        timeout_s: float | None = None,
        transactional_id: str | None = None,
    ) -> None:
        """Connect at the first request. `transactional_id`: commit in transactions of this id (`TransactionalCommits`)."""
        self._config = config
        names = (config.source_cluster_name, config.target_cluster_name)
        clients = (config.source.client, config.target.client)
        self.origin_name, self.other_name = names if side == "source" else names[::-1]
        of_origin, of_other = clients if side == "source" else clients[::-1]
        self.origin = GroupClient(of_origin, self.origin_name, timeout_s)
        if transactional_id is None:
            other = GroupClient(of_other, self.other_name, timeout_s)
        else:
            timeout_ms = min(config.write.transaction_timeout_ms, COMMIT_TIMEOUT_MS)
            other = TransactionalCommits(of_other, self.other_name, timeout_s, transactional_id, timeout_ms)
        super().__init__(other, side)
        self.source, self.target = (self.origin, other) if side == "source" else (other, self.origin)
        self.unanswered: dict[str, RetriableError] = {}
        """Known groups that `committed` did not find last, because their coordinators are missing."""

    def close(self) -> None:
        self.source.close()
        self.target.close()

    def require(self, view: GroupClient, offset_map: OffsetMap) -> None:
        """Raise RetriableError if the cluster does not answer, ConfigError if the map is not of this cluster."""
        if view is self.source:
            offset_map.require_clusters(source=view.cluster_id())
        else:
            offset_map.require_clusters(target=view.cluster_id())

    def committed(
        self, is_wanted: Callable[[str], bool], *, waits_for_txns: bool = True, known: Collection[str] | None = None
    ) -> list[Committed]:
        """Return the offsets of all groups that the mirror file includes and `is_wanted` accepts, without those of mirrors.

        `waits_for_txns`: as `ConsumerGroups.committed`. `known`: groups that had offsets before. No broker may list one of them
        for a moment, so that each is asked for, and left to `unanswered` where no coordinator answers; None: nothing is known,
        and all coordinators have to be there.
        """
        listed = self.origin.listed() if known is None else self.origin.reported()
        names = [name for name in sorted(listed) if self._config.groups.is_included(name) and is_wanted(name)]
        self._active = {name for name in names if not listed[name].is_free}
        committed = dict(self.origin.committed(names, waits_for_txns=waits_for_txns))
        self.unanswered = {}
        for name in sorted(set(known or ()) - listed.keys()):
            if self.unanswered:  # each of them may wait as long
                self.unanswered[name] = next(iter(self.unanswered.values()))
                continue
            try:
                with suppress(ConfigError):  # it is hidden by now
                    committed |= self.origin.committed([name], waits_for_txns=waits_for_txns)
            except RetriableError as error:
                self.unanswered[name] = error
        return _of_applications(committed)

    def resolve_sources(
        self, committed: Iterable[Committed], offset_map: OffsetMap, forgotten: ForgottenTopics
    ) -> list[SourceCommit]:
        """Return the offsets with the incarnation of the source partition that each is of: none that is forgotten."""
        committed = list(committed)
        found = self._held_on_target(committed, offset_map) if self.side == "target" else self._held_on_source(committed)
        if not forgotten.at_ms:
            return found
        return [
            commit
            if commit.source is None or not forgotten.has(commit.source)
            else commit._replace(
                source=None,
                reason=f"topic {commit.source.topic} (id {commit.source.topic_id}) is forgotten: it is not mirrored any more",
            )
            for commit in found
        ]

    def require_all_resolved(self, resolved: Iterable[SourceCommit], offset_map: OffsetMap, forgotten: ForgottenTopics) -> None:
        """Raise RetriableError if offsets were left out of topics that are mirrored, and that the source has after all."""
        if self.side == "source":
            unresolved = {commit.topic_partition.topic for commit in resolved if commit.source is None}
            if unresolved:
                mirrored = {source.topic for source in forgotten.without(offset_map.positions())}
                self.source.require_absent({topic for topic in unresolved & mirrored if self._config.topics.is_included(topic)})

    def _held_on_source(self, committed: Sequence[Committed]) -> list[SourceCommit]:
        unknown = {commit.topic_partition.topic for commit in committed if commit.topic_id is None}
        topics = self._config.topics
        reasons = {topic: _exclusion_reason(topic, is_included=topics.is_included(topic)) for topic in unknown}
        ids = self.source.topic_ids(topic for topic in unknown if not reasons[topic])
        source_commits = []
        for commit in committed:
            topic_id = commit.topic_id or ids.get(commit.topic_partition.topic)
            source = (
                None
                if topic_id is None
                else SourcePartition(commit.topic_partition.topic, topic_id, commit.topic_partition.partition)
            )
            reason = (
                "" if source is not None else reasons[commit.topic_partition.topic] or "the source does not show such a topic"
            )
            source_commits.append(
                SourceCommit(commit.group, commit.topic_partition, commit.offset, commit.metadata, source, reason)
            )
        return source_commits

    def _held_on_target(self, committed: Sequence[Committed], offset_map: OffsetMap) -> list[SourceCommit]:
        sources: defaultdict[TopicPartition, list[SourcePartition]] = defaultdict(list)
        for source, position in offset_map.positions().items():
            sources[position.target.topic_partition].append(source)
        ids = self.source.topic_ids(source.topic for commit in committed for source in sources.get(commit.topic_partition, ()))
        source_commits = []
        for commit in committed:
            mirrored = sources.get(commit.topic_partition, [])
            current = next((source for source in mirrored if ids.get(source.topic) == source.topic_id), None)
            reason = "this mirror does not write there"
            if mirrored and current is None:
                reason = f"the source has no topic {mirrored[0].topic} any more that is in the map"
            source_commits.append(
                SourceCommit(
                    commit.group,
                    commit.topic_partition,
                    commit.offset,
                    commit.metadata,
                    current,
                    "" if current is not None else reason,
                )
            )
        return source_commits

    def clusters(
        self,
        source_commits: Sequence[SourceCommit],
        offset_map: OffsetMap,
        forgotten: ForgottenTopics,
        *,
        asks_origin: bool = True,
        are_ends_final: bool = False,
        waits_for_leaders: bool = True,
    ) -> Clusters:
        """Return log starts on the origin, and the starts of rows that may still be removed. To be called first.

        `waits_for_leaders`: raise RetriableError where a log of the origin has no leader; else its start is not known.
        """
        topic_partitions = {commit.topic_partition for commit in source_commits if commit.source is not None}
        unsettled: dict[TopicPartition, int] = {}
        for row in offset_map.unsettled_rows() if self.side == "target" else ():
            start, topic_partition = row.segment.target_start, row.segment.target.topic_partition
            if start is not None:
                unsettled[topic_partition] = min(start, unsettled.get(topic_partition, start))
        starts: Mapping[TopicPartition, int] = {}
        if asks_origin and waits_for_leaders:
            starts = self.origin.offsets(topic_partitions, EARLIEST_TIMESTAMP)
        elif asks_origin:
            starts = self.origin.known_starts(topic_partitions)
        return Clusters(
            origin_starts=starts,
            # The source's ids were compared when the offsets were resolved.
            origin_ids=self.origin.topic_ids(name.topic for name in topic_partitions) if self.side == "target" else {},
            unsettled=unsettled,
            forgotten_ids=forgotten.topic_ids,
            are_ends_final=are_ends_final,
        )


def is_of_mirror(metadata: str) -> bool:
    """Return whether a group that commits this is one of a mirror or migration, not of an application."""
    if not metadata:
        return False
    is_note = Origin.parse(metadata) is not None or RowNote.parse(metadata) is not None or NewestControl.is_note(metadata)
    return is_note or is_receipt(metadata)


def committed_offsets(origin: GroupClient, groups: Iterable[str]) -> list[Committed]:
    """Return the offsets of these groups, without those of mirrors."""
    return _of_applications(origin.committed(groups))


def _of_applications(committed: Mapping[str, Sequence[CommittedOffset]]) -> list[Committed]:
    return [
        Committed(group, offset.topic_partition, offset.offset, offset.metadata)
        for group, offsets in committed.items()
        if not any(is_of_mirror(offset.metadata) for offset in offsets)
        for offset in offsets
    ]


def add_rows(translator: CommitTranslator | RepeatCounter, offset_map: OffsetMap, topics: Collection[str], first: int) -> None:
    """Add the rows of settled decisions from micro-batch `first` on."""
    of_topic: Condition = (Comparison("source_topic", "=", next(iter(topics))),) if len(topics) == 1 else ()
    recent: Condition = (Comparison("micro_batch", ">", first - 1),) if first > 0 else ()
    for rows in offset_map.settled_pieces((*of_topic, *recent), COMMIT_COLUMNS) if topics else ():
        translator.add(rows)


def translate(source_commits: Sequence[SourceCommit], clusters: Clusters, offset_map: OffsetMap, side: Side) -> CommitTranslator:
    commits = commits_of(source_commits, clusters)
    translator = CommitTranslator(commits, side)
    add_rows(translator, offset_map, {commit.source.topic for commit in commits}, 0)
    return translator


def with_repeats(
    evaluated: Sequence[GroupPartition], translator: CommitTranslator, offset_map: OffsetMap, side: Side
) -> list[GroupPartition]:
    """Add how many records each would read twice: none, but where batches were released from quarantine."""
    offsets = {
        Commit(partition.source, partition.offset): partition.to_offset
        for partition in evaluated
        if may_commit(partition, is_forced=False)
        and partition.source is not None
        and partition.offset is not None
        and partition.to_offset is not None
    }
    counter = RepeatCounter(offsets, side)
    if translator.may_repeat():
        add_rows(counter, offset_map, {partition.source.topic for partition in offsets}, 0)
    return [
        partition._replace(repeats=counter.counts[Commit(partition.source, partition.offset)])
        if may_commit(partition, is_forced=False) and partition.source is not None and partition.offset is not None
        else partition
        for partition in evaluated
    ]


def _exclusion_reason(topic: str, *, is_included: bool) -> str:
    if is_included:
        return ""
    if topic.startswith(routing.INTERNAL_PREFIX):
        return "internal topics are never mirrored"
    return "topics.include and topics.exclude leave this topic out"
