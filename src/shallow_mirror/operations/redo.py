"""Driver, for the cli: a range of a source partition once more, into a topic of its own, exactly once.

It is a small mirror by itself: with an id, and so transactional ids and receipts, and an offset map of its own, that the range
and its target name. So it knows what it has copied when it is called again, and the mirror's own positions and translations stay
what they are, also while the mirror runs.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.checkpoints.schema import rows_from_arrow, schema_of
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.operator_session import TakenOver, taken_over
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import routing
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.protocol.recovery import recover
from shallow_mirror.sinks.kafka.single_slot import SINGLE_SLOT
from shallow_mirror.sinks.kafka.slots.batch_sources import DirectReadings, ReadingLimits
from shallow_mirror.sinks.kafka.slots.slot_job import target_ends_of
from shallow_mirror.sinks.kafka.slots.slot_target import KafkaSlotTarget
from shallow_mirror.sinks.kafka.slots.slot_task import fill_slot
from shallow_mirror.sinks.kafka.slots.slot_time import TASK_SHARE
from shallow_mirror.sinks.kafka.slots.truncation_check import CheckedReadings
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics, first_rows
from shallow_mirror.sinks.slot_results import SlotResult
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.planner_config import PlanSettings
from shallow_mirror.streaming.planning.source_offsets import LogEnds, Planner
from shallow_mirror.streaming.runner.sink_config import job_template, target_topics
from shallow_mirror.types import PlannedRange, SegmentKind, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)

START_MS = 120_000


@dataclass(frozen=True, slots=True)
class RedoRequest:
    """Source offsets [start, end) of `place`, into the partition of the same number of `target_topic`."""

    place: TopicPartition
    start: int
    end: int
    target_topic: str

    @property
    def name(self) -> str:
        text = f"{self.place.topic} {self.place.partition} {self.start} {self.end} {self.target_topic}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Redone:
    """Whole batches: [`start`, `end`) may begin below and end above what was asked for. `record_count`: of all calls together."""

    request: RedoRequest
    start: int
    end: int
    record_count: int
    tables: str
    was_done: bool

    def sentence(self) -> str:
        what = "was copied before" if self.was_done else "copied"
        place, target = self.request.place, TopicPartition(self.request.target_topic, self.request.place.partition)
        return (
            f"{what}: offsets {self.start} to {self.end - 1} of {place} (whole batches), {counted(self.record_count, 'record')}, "
            f"to {target}; the offset map of this copy is in {self.tables}"
        )


def redo(config: MirrorConfig, request: RedoRequest, spark: Any = None, *, observer: Observer = observe_nothing) -> Redone:
    """May be called again after any error: it goes on where it was. `config` is that of `config_of`, as is `spark`.

    Raises ConfigError, DataLossError, BatchRefusedError, RecoverNeededError, FencedError, OutcomeUnknownError, RetriableError.
    """
    deadline = Deadline.after_ms(START_MS, time.monotonic)
    with taken_over(config, "redo", deadline, spark=spark, observer=observer) as taken:
        recover(taken.owner, taken.performer, mirror=config.mirror, deadline=deadline)
        copy = _Copy(config, request, taken, observer)
        was_done = not copy.run(deadline)
        taken.owner.settle()
        taken.outcome = "redo: done"
    rows = [
        row.segment for row in rows_from_arrow(OffsetMap.open(config.table_storage, spark, mirror=config.mirror).settled_rows())
    ]
    return Redone(
        request=request,
        start=min(one.source_start for one in rows),
        end=max(one.source_end for one in rows),
        record_count=sum(one.record_count for one in rows if one.kind is SegmentKind.DATA),
        tables=config.tables,
        was_done=was_done,
    )


def config_of(config: MirrorConfig, request: RedoRequest, tables: str | None = None) -> MirrorConfig:
    """Of the mirror that copies the range. `tables`: a folder for its map, where the mirror's own is in a catalog.

    Raises ConfigError for a request that cannot be meant.
    """
    problems = _problems(config, request)
    if tables is None and schema_of(config.tables) is not None:
        problems.append("the tables of this mirror are in a catalog: give --tables FOLDER for the offset map of the copied range")
    if problems:
        raise ConfigError(problems)
    folder = f"{tables or config.tables}/redo/{request.name}"
    topics = config.topics.model_copy(update={"include": [re.escape(request.place.topic)], "exclude": [], "start": {}})
    write = config.write.model_copy(update={"slots": 1, "on_refused": "stop"})
    changes = {"mirror": f"{config.mirror}.redo.{request.name}", "tables": folder, "checkpoint": f"{folder}/_spark"}
    return config.model_copy(update={**changes, "topics": topics, "write": write})


def _problems(config: MirrorConfig, request: RedoRequest) -> list[str]:
    problems = []
    if not 0 <= request.start < request.end:
        problems.append(f"offsets {request.start} to {request.end}: FROM must be below TO (TO itself is not copied)")
    template, alias, target = config.topics.target_name, config.source.alias, request.target_topic
    own = re.fullmatch(routing.own_targets_pattern(template, alias), target)
    if own is not None and config.topics.is_included(own["topic"]):
        problems.append(f"--to {target}: there this mirror writes source topic {own['topic']}: give the name of another topic")
    problems += routing.name_problems(request.place.topic, target)
    return problems


class _Copy:
    def __init__(self, config: MirrorConfig, request: RedoRequest, taken: TakenOver, observer: Observer) -> None:
        self._config, self._request, self._taken, self._observer = config, request, taken, observer
        self._planner = Planner(PlanSettings.of_mirror(config), taken.source)

    def run(self, deadline: Deadline) -> bool:
        """False when there was nothing left to copy."""
        owner, slot = self._taken.owner, self._taken.single_slot(self._config, self._observer)
        known = self._position(owner)
        if known is not None and known[1].offset >= self._request.end:
            return False
        listing = self._planner.log_ends(deadline)
        listing.require_answers()
        source = self._source(listing, known, deadline)
        targets = self._targets(owner, deadline)
        if known is None:
            self._begin(source, targets, listing, deadline)
        bytes_per_offset = self._planner.sample({source: owner.positions()[source].offset}, listing, deadline)
        while (position := owner.positions()[source]).offset < self._request.end:
            per_offset = bytes_per_offset.get(source, offset_planning.UNKNOWN_BYTES_PER_OFFSET)
            end = min(self._request.end, position.offset + max(1, int(self._config.write.slot_bytes / per_offset)))
            planned = PlannedRange(
                slot=SINGLE_SLOT,
                source=source,
                start=position.offset,
                end=end,
                bytes_per_offset=per_offset,
            )
            slot.round(lambda decision, left, planned=planned: self._fill(planned, targets, decision, left))  # type: ignore[misc]
            _log.info("redo: %s up to offset %d", self._request.place, owner.positions()[source].offset)
        return True

    def _position(self, owner: OffsetMapOwner) -> tuple[SourcePartition, Position] | None:
        return next(((one, at) for one, at in owner.positions().items() if one.topic_partition == self._request.place), None)

    def _source(self, listing: LogEnds, known: tuple[SourcePartition, Position] | None, deadline: Deadline) -> SourcePartition:
        """Raises ConfigError where the source does not have the range, DataLossError where the topic was created again."""
        place, request = self._request.place, self._request
        source = next((one for one in listing.ends if one.topic_partition == place), None)
        if source is None:
            raise ConfigError(f"the source has no partition {place}, or it has no leader")
        if known is not None:
            offset_planning.require_same_topics({known[0]: known[1].offset}, listing.topic_ids)
            return source
        start = self._planner.log_starts([source], deadline)[source]
        if not start <= request.start < request.end <= listing.ends[source]:
            raise ConfigError(
                f"offsets {request.start} to {request.end} of {place}: the source has {start} to {listing.ends[source]} "
                "(up to the last stable offset, if only committed records are read)"
            )
        return source

    def _targets(self, owner: OffsetMapOwner, deadline: Deadline) -> TargetTopics:
        source, target, topic = self._taken.source, self._taken.target, self._request.place.topic
        targets = target_topics(self._config, source, target, owner.positions(), route=lambda _: self._request.target_topic)
        listed = source.metadata([topic], deadline).topics[topic]
        targets.prepare({topic: len(listed.partitions)}, deadline)
        return targets

    def _begin(self, source: SourcePartition, targets: TargetTopics, listing: LogEnds, deadline: Deadline) -> None:
        """A batch is never cut: the range begins with the one that holds its first offset."""
        starts = self._planner.moved_down({source: self._request.start}, listing, deadline)
        rows = first_rows(targets, self._taken.source, starts, deadline)
        self._taken.owner.next_decision()
        self._taken.owner.decide(rows, highest_slot=-1)
        self._taken.owner.settle()

    def _fill(self, planned: PlannedRange, targets: TargetTopics, decision: int, deadline: Deadline) -> SlotResult:
        owner, source, target = self._taken.owner, self._taken.source, self._taken.target
        template = job_template(self._config, map_id=owner.map_id, run_id=self._taken.run.run_id, observer=self._observer)
        known: Mapping[SourcePartition, Position] = owner.positions()
        positions = {planned.source: known[planned.source].offset}
        job = replace(
            template,
            decision=decision,
            routes=dict(targets.known),
            positions=positions,
            epoch_ends={one: at.epoch_end for one, at in known.items() if at.epoch_end is not None},
            target_ends=target_ends_of(known.values()),
            time_left_ms=template.transaction_timeout_ms * TASK_SHARE,
        )
        deadline = deadline.sooner(job.time_left_ms)
        limits = ReadingLimits(isolation=job.isolation, fetch_bytes=job.fetch_bytes, deadline=deadline)
        readings = DirectReadings(source, [planned], positions, limits)
        checked = CheckedReadings(readings, source, job.epoch_ends, deadline)
        return fill_slot(job, SINGLE_SLOT, checked, positions, KafkaSlotTarget(job, SINGLE_SLOT, target, deadline), deadline)
