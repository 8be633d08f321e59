"""Driver, for the cli: another copy of a range of a source partition, into a topic of its own, exactly once.

It is a small mirror of its own: its id (and so its transactional ids and receipts) and its offset map are named after the range
and the target. So a repeated call continues where the last one ended, and the mirror's own positions and translations do not
change, also while the mirror runs. No other mirror has such an id: a receipt of another map is one of the map that is missing.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec
from shallow_mirror.broker.cluster import absent_topics, gone_topics, reach
from shallow_mirror.broker.produce import read_receipts
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Position, rows_from_arrow, schema_of
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.values import TASK_SHARE
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, DataLossError, OlderTablesError
from shallow_mirror.operations.operator_session import OperatorSession, open_operator_session
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import Observer, SlotResult, observe_nothing
from shallow_mirror.sinks.kafka import SINGLE_SLOT, SingleSlot, transactional_id
from shallow_mirror.sinks.kafka.targets import TargetTopics, first_rows
from shallow_mirror.sinks.kafka.targets.settings import pause_of
from shallow_mirror.sinks.kafka.writers import KafkaSlotTarget, target_ends_of
from shallow_mirror.sinks.slots import CheckedReadingFactory, DirectReadingFactory, ReadingLimits, SlotInput, fill_slot
from shallow_mirror.streaming.planning import LogEnds, PlannerConfig, SourceOffsets, offset_planning
from shallow_mirror.streaming.runs import ClusterIds
from shallow_mirror.types import (
    UNKNOWN_BYTES_PER_OFFSET,
    OffsetRange,
    PlannedRange,
    Segment,
    SegmentKind,
    SourcePartition,
    TopicPartition,
)

_log = logging.getLogger(__name__)

START_MS = 120_000


@dataclass(frozen=True, slots=True)
class RedoRequest:
    """Source offsets [start, end) of `topic_partition`, into the partition of the same number of `target_topic`."""

    topic_partition: TopicPartition
    start: int
    end: int
    target_topic: str
    topic_id: str = ""
    """Of the source topic, where a copy of the same offsets of a former one may have been made; else empty."""

    @property
    def name(self) -> str:
        text = f"{self.topic_partition.topic} {self.topic_partition.partition} {self.start} {self.end} {self.target_topic}"
        text += f" {self.topic_id}" if self.topic_id else ""
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class RedoResult:
    """Whole batches: [`start`, `end`) may begin below and end above the requested range. `record_count`: of all calls.

    `gone`: requested offsets that the source did not have any more.
    """

    request: RedoRequest
    start: int
    end: int
    record_count: int
    tables: str
    was_done: bool
    gone: tuple[OffsetRange, ...] = ()

    def sentence(self) -> str:
        action = "was copied before" if self.was_done else "copied"
        source = self.request.topic_partition
        target = TopicPartition(self.request.target_topic, source.partition)
        return (
            f"{action}: offsets {self.start} to {self.end - 1} of {source} (whole batches), "
            f"{counted(self.record_count, 'record')}, to {target}; the offset map of this copy is in {self.tables}"
        )


def redo(
    config: MirrorConfig,
    request: RedoRequest,
    spark: Any = None,
    *,
    clusters: ClusterIds | None = None,
    leaves_out_gone: bool = False,
    keeps_all: bool = False,
    known_ids: Collection[str] = (),
    observer: Observer = observe_nothing,
) -> RedoResult:
    """Copy the range. Safe to call again after any error: it continues from there.

    `config` is that of `redo_config`, `spark` the session of `session_for_tables` for it. `clusters`: those of
    `mirrored_clusters`, read before: offsets of another cluster of the same name are others. `leaves_out_gone`: copy what the
    source still has of the range, also where it has nothing, or not the topic. `keeps_all`: brokers delete nothing of a topic
    that is created for it. `known_ids`: of the topic of the range, where the request names none; empty: that of now.

    Raises ConfigError, OlderTablesError, DataLossError, BatchRefusedError, RecoverNeededError, FencedError, OutcomeUnknownError,
    RetriableError.
    """
    deadline = Deadline.after_ms(START_MS, time.monotonic)
    _require_own_map(config, request, spark, deadline)
    with open_operator_session(config, "redo", deadline, spark=spark, observer=observer, expected=clusters) as session:
        _recover(session, request, deadline)
        copy = _Copy(config, request, session, known_ids if leaves_out_gone else None, keeps_all=keeps_all)
        was_done = not copy.run(deadline)
        session.await_visible()
        session.owner.settle()
        session.end.outcome = "redo: done"
    rows = rows_from_arrow(OffsetMap.open(config.table_location, spark, mirror=config.mirror).settled_rows())
    segments = [row.segment for row in rows if row.segment.kind is not SegmentKind.EXPIRED]
    return RedoResult(
        request=request,
        start=min((segment.source_start for segment in segments), default=request.start),
        end=max((segment.source_end for segment in segments), default=request.start),
        record_count=sum(segment.record_count for segment in segments if segment.kind is SegmentKind.DATA),
        tables=config.tables,
        was_done=was_done,
        gone=_gone(request, segments),
    )


def mirrored_clusters(config: MirrorConfig, spark: Any = None) -> ClusterIds | None:
    """Return the clusters of the offset map of a mirror; None if it has none yet. Raises as `OffsetMap.open`."""
    storage = TableStorage(config.table_location, spark)
    if storage.offset_map.snapshot() is None:
        return None
    offset_map = OffsetMap.open(storage, mirror=config.mirror, counts_rows=False)
    return ClusterIds(source=offset_map.source_cluster_id, target=offset_map.target_cluster_id)


def _require_own_map(config: MirrorConfig, request: RedoRequest, spark: Any, deadline: Deadline) -> None:
    """Raise OlderTablesError if the target was written with another map of this copy, which is missing then."""
    group = transactional_id(config.mirror, SINGLE_SLOT)
    with closing(Cluster(config.target.client)) as target:
        receipts = read_receipts(target, group, deadline)
    # The map is read after the receipts: each of them is of a map that was there before.
    is_begun = TableStorage(config.table_location, spark).offset_map.snapshot() is not None
    map_id = OffsetMap.open(config.table_location, spark, mirror=config.mirror).map_id if is_begun else None
    if receipt := next((receipt for receipt in receipts if receipt.map_id != map_id), None):
        raise OlderTablesError(
            "none of this copy" if map_id is None else f"one of another offset map of this copy ({map_id})",
            f"consumer group {group} on the target has a receipt of the offset map {receipt.map_id}, of run {receipt.run_id}",
            receipt.decision,
            receipt.run_id,
            if_lost=_if_lost(config, request),
        )


def _if_lost(config: MirrorConfig, request: RedoRequest) -> str:
    return (
        f"if they are lost, nothing tells which records of the range {request.target_topic} has: with the consumer group "
        f"{transactional_id(config.mirror, SINGLE_SLOT)} deleted on the target, all of it is copied, and these a second time"
    )


def _recover(session: OperatorSession, request: RedoRequest, deadline: Deadline) -> None:
    assert isinstance(session.config, MirrorConfig)
    try:
        session.recover(deadline)
    except OlderTablesError as older:
        raise replace(older, if_lost=_if_lost(session.config, request)) from None


def _gone(request: RedoRequest, segments: Iterable[Segment]) -> tuple[OffsetRange, ...]:
    """Pure. Return the requested offsets that no segment covers."""
    gone, at = [], request.start
    for segment in sorted(segments, key=lambda each: each.source_start):
        if segment.source_start > at:
            gone.append(OffsetRange(at, min(segment.source_start, request.end)))
        at = max(at, segment.source_end)
    if at < request.end:
        gone.append(OffsetRange(at, request.end))
    return tuple(gone)


def redo_config(
    config: MirrorConfig, request: RedoRequest, tables: str | None = None, *, is_handed_over: bool = False
) -> MirrorConfig:
    """Return the config of the mirror that copies the range. `tables`: a folder for its map, if the mirror's is in a catalog.

    If the mirror would write a source topic to the target topic, the source is asked whether it has that topic; not if
    `is_handed_over`: then the mirror writes to none of its target topics. Raises ConfigError for an invalid request,
    RetriableError.
    """
    problems = [] if is_handed_over else _problems(config, request)
    if tables is None and schema_of(config.tables) is not None:
        problems.append("the tables of this mirror are in a catalog: give --tables FOLDER for the offset map of the copied range")
    if problems:
        raise ConfigError(problems)
    folder = f"{tables or config.tables}/redo/{request.name}"
    included = [re.escape(request.topic_partition.topic)]
    # The copy is written in transactions, whatever offsets the mirror's own copy has.
    topics = config.topics.model_copy(update={"include": included, "exclude": [], "start": {}, "offsets": {}})
    write = config.write.model_copy(update={"slots": 1, "on_refused": "stop"})
    changes = {"mirror": f"{config.mirror}.redo.{request.name}", "tables": folder, "checkpoint": f"{folder}/_spark"}
    return config.model_copy(update={**changes, "topics": topics, "write": write})


def _problems(config: MirrorConfig, request: RedoRequest) -> list[str]:
    problems = []
    if not 0 <= request.start < request.end:
        problems.append(f"offsets {request.start} to {request.end}: FROM must be below TO (TO itself is not copied)")
    template, alias, target = config.topics.target_name, config.source.alias, request.target_topic
    own = re.fullmatch(routing.own_targets_pattern(template, alias), target)
    if own is not None and config.topics.is_included(own["topic"]) and _is_copied(config, own["topic"]):
        problems.append(f"--to {target}: this mirror writes source topic {own['topic']} to it: give the name of another topic")
    problems += routing.name_problems(request.topic_partition.topic, target)
    return problems


def _is_copied(config: MirrorConfig, topic: str) -> bool:
    """Return whether the source has the topic, and the operator has not forgotten this one: forgotten topics are not copied."""
    deadline = Deadline.after_ms(START_MS, time.monotonic)
    with closing(Cluster(config.source.client)) as source:
        reach(source, config.source_cluster_name, deadline)
        listed = source.metadata([topic], deadline).topics.get(topic)
    if listed is None or listed.error_code != 0:
        return False
    if config.table_location.is_read_by_spark:
        return True  # there is no session yet: the name of another topic is always possible
    return listed.topic_id not in Controls.open(TableStorage(config.table_location)).read().forgotten.topic_ids


def _without_deletion(specs: Mapping[str, TopicSpec]) -> Mapping[str, TopicSpec]:
    """Return topics of which brokers delete nothing: the settings of a source topic would, by the times of its records."""
    return {topic: replace(spec, configs={**spec.configs, **pause_of(spec.configs)}) for topic, spec in specs.items()}


class _Copy:
    def __init__(
        self,
        config: MirrorConfig,
        request: RedoRequest,
        session: OperatorSession,
        known_ids: Collection[str] | None,
        *,
        keeps_all: bool,
    ) -> None:
        """`known_ids`: of the topic, where what is gone is left out; None: that is an error."""
        self._keeps_all = keeps_all
        self._config = config
        self._request = request
        self._session = session
        self._leaves_out_gone = known_ids is not None
        self._known_ids = [request.topic_id] if request.topic_id else known_ids or ()
        assert session.source is not None, "a mirror reads a cluster"
        self._source_cluster = session.source
        self._offsets = SourceOffsets(PlannerConfig.of_mirror(config), session.source)

    def run(self, deadline: Deadline) -> bool:
        """Copy the rest of the range. Return False if there is none."""
        owner, slot = self._session.owner, self._session.single_slot()
        name = self._request.topic_partition
        copied = next((item for item in owner.positions().items() if item[0].topic_partition == name), None)
        if copied is not None and not self._leaves_out_gone:
            self._require_same_topics(*copied, deadline)
        if copied is not None and copied[1].offset >= self._request.end:
            return False
        listing = self._offsets.log_ends(deadline)
        listing.require_answers()
        if self._is_topic_gone(copied, deadline):
            return False
        source = self._source(listing, copied, deadline)
        if copied is None and self._leaves_out_gone and self._log_start(source, deadline) >= self._request.end:
            return False
        targets = self._targets(owner, deadline)
        if copied is None:
            self._begin(source, targets, listing, deadline)
        while True:
            self._leave_out_expired(source, deadline)
            if owner.positions()[source].offset >= self._request.end:
                return True
            try:
                self._copy_rest(source, targets, slot, listing, deadline)
            except DataLossError as loss:
                if self._is_topic_gone((source, owner.positions()[source]), deadline):
                    return True
                is_expired = loss.log_start_offset is not None and loss.log_start_offset > loss.expected_offset
                if not (self._leaves_out_gone and is_expired):
                    raise

    def _copy_rest(
        self, source: SourcePartition, targets: TargetTopics, slot: SingleSlot, listing: LogEnds, deadline: Deadline
    ) -> None:
        owner = self._session.owner
        bytes_per_offset = self._offsets.sample({source: owner.positions()[source].offset}, listing, deadline)
        while (position := owner.positions()[source]).offset < self._request.end:
            per_offset = bytes_per_offset.get(source, UNKNOWN_BYTES_PER_OFFSET)
            end = min(self._request.end, position.offset + max(1, int(self._config.write.slot_bytes / per_offset)))
            planned = PlannedRange(
                slot=SINGLE_SLOT,
                source=source,
                start=position.offset,
                end=end,
                bytes_per_offset=per_offset,
            )
            slot.round(lambda decision, left, planned=planned: self._fill(planned, targets, decision, left))  # type: ignore[misc]
            _log.info("redo: %s up to offset %d", self._request.topic_partition, owner.positions()[source].offset)

    def _leave_out_expired(self, source: SourcePartition, deadline: Deadline) -> None:
        """Record offsets from the position on that the source has deleted as expired: the copy continues behind them."""
        if not self._leaves_out_gone:
            return
        position = self._session.owner.positions()[source]
        end = min(self._log_start(source, deadline), self._request.end)
        if end > position.offset:
            expired = Segment(
                source=source,
                source_start=position.offset,
                source_end=end,
                kind=SegmentKind.EXPIRED,
                target=position.target,
            )
            self._session.register([DecidedSegment(expired, None)], deadline)

    def _is_topic_gone(self, copied: tuple[SourcePartition, Position] | None, deadline: Deadline) -> bool:
        """Return whether the source topic of the range was deleted, where that is to be left out. `copied`: what was begun."""
        if not self._leaves_out_gone:
            return False
        cluster, topic = self._source_cluster, self._request.topic_partition.topic
        ids = self._known_ids if copied is None else [copied[0].topic_id]
        if not ids:
            return topic in absent_topics(cluster, [topic], deadline)
        return all(topic in gone_topics(cluster, {topic: topic_id}, deadline, asks_all=True) for topic_id in ids)

    def _require_same_topics(self, source: SourcePartition, position: Position, deadline: Deadline) -> None:
        """Raise ConfigError if what was copied is gone, or of a former topic: to repeat the command would copy nothing."""
        topic, target = source.topic, position.target
        problems = []
        at_target = gone_topics(self._session.target, {target.topic: target.topic_id}, deadline).get(target.topic)
        if at_target is not None:
            again = " and created again" if at_target else ""
            problems.append(
                f"target topic {target.topic} was deleted{again} since, with what was copied of {source.topic_partition} to it"
            )
        # Of one that was only deleted, the copy is all that there is.
        if at_source := gone_topics(self._source_cluster, {topic: source.topic_id}, deadline).get(topic):
            problems.append(
                f"source topic {topic} was deleted and created again (topic id {source.topic_id} became {at_source}), and what "
                f"was copied to {target.topic} is of the former one"
            )
        if problems:
            raise ConfigError([f"{problem}: give the name of another topic (--to)" for problem in problems])

    def _log_start(self, source: SourcePartition, deadline: Deadline) -> int:
        return self._offsets.log_starts([source], deadline)[source]

    def _source(self, listing: LogEnds, copied: tuple[SourcePartition, Position] | None, deadline: Deadline) -> SourcePartition:
        """Return the partition. Raises ConfigError if it does not have the range, DataLossError if it was recreated."""
        name, request = self._request.topic_partition, self._request
        source = next((source for source in listing.ends if source.topic_partition == name), None)
        if source is None:
            raise ConfigError(f"the source has no partition {name}, or it has no leader")
        if request.topic_id and source.topic_id != request.topic_id:
            raise ConfigError(f"source topic {name.topic} was deleted and created again: its offsets belong to other records now")
        if copied is not None:
            offset_planning.require_same_topics({copied[0]: copied[1].offset}, listing.topic_ids)
            return source
        start = self._log_start(source, deadline)
        is_there = start <= request.start or self._leaves_out_gone
        if not (is_there and request.start < request.end <= listing.ends[source]):
            raise ConfigError(
                f"offsets {request.start} to {request.end} of {name}: the source has {start} to {listing.ends[source]} "
                "(up to the last stable offset, if only committed records are read)"
            )
        return source

    def _targets(self, owner: LedgerOwner, deadline: Deadline) -> TargetTopics:
        source, target, topic = self._source_cluster, self._session.target, self._request.topic_partition.topic
        targets = TargetTopics(
            self._config,
            source,
            target,
            positions=owner.positions(),
            route=lambda _: self._request.target_topic,
            adjust_new=_without_deletion if self._keeps_all else dict,
        )
        listed = source.metadata([topic], deadline).topics[topic]
        targets.prepare({topic: len(listed.partitions)}, deadline)
        return targets

    def _begin(self, source: SourcePartition, targets: TargetTopics, listing: LogEnds, deadline: Deadline) -> None:
        """Write the first row. A batch is never cut: the range begins with the batch that holds its first offset."""
        starts = {source: self._request.start}
        if self._log_start(source, deadline) <= self._request.start:
            starts = self._offsets.align_to_batch_start(starts, listing, deadline)
        rows = first_rows(targets, self._source_cluster, starts, deadline)
        self._session.register(rows, deadline)

    def _fill(self, planned: PlannedRange, targets: TargetTopics, decision: int, deadline: Deadline) -> SlotResult:
        owner, source, target = self._session.owner, self._source_cluster, self._session.target
        template = self._session.job_template()
        all_positions: Mapping[SourcePartition, Position] = owner.positions()
        positions = {planned.source: all_positions[planned.source].offset}
        job = replace(
            template,
            decision=decision,
            routes=dict(targets.routes),
            positions=positions,
            epoch_ends={
                source: position.epoch_end for source, position in all_positions.items() if position.epoch_end is not None
            },
            target_ends=target_ends_of(all_positions.values()),
            time_left_ms=template.transaction_timeout_ms * TASK_SHARE,
        )
        deadline = deadline.sooner(job.time_left_ms)
        limits = ReadingLimits.of_job(job, deadline)
        readings = DirectReadingFactory(source, [planned], positions, limits)
        checked = CheckedReadingFactory(readings, source, job.epoch_ends, deadline)
        source_of_slot = SlotInput(number=SINGLE_SLOT, readings=checked, positions=positions)
        return fill_slot(job, source_of_slot, KafkaSlotTarget(job, SINGLE_SLOT, target, deadline), deadline)
