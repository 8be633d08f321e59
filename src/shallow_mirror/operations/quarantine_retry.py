"""Driver, for the cli: the batches in quarantine once more, after the remedy: at the target's end, exactly once.

It takes the mirror over, as a start does, and resolves what the last run decided. Then rounds of
`sinks/kafka/quarantine_release.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shallow_mirror.checkpoints.quarantine import Quarantine, QuarantineEntry
from shallow_mirror.checkpoints.quarantined_batches import QuarantinedBatch
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.operator_session import TakenOver, taken_over
from shallow_mirror.operations.quarantine import Selection
from shallow_mirror.operations.status import run_of
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.protocol.recovery import recover
from shallow_mirror.sinks.kafka.quarantine_release import Released, Releaser
from shallow_mirror.sinks.kafka.quarantine_source import QuarantineReadings
from shallow_mirror.sinks.kafka.single_slot import SINGLE_SLOT
from shallow_mirror.sinks.kafka.slots.quarantine_policy import NO_LIMITS
from shallow_mirror.sinks.kafka.slots.slot_job import SlotJob, target_ends_of
from shallow_mirror.sinks.kafka.slots.slot_target import KafkaSlotTarget
from shallow_mirror.sinks.kafka.slots.slot_task import fill_slot
from shallow_mirror.sinks.kafka.slots.slot_time import TASK_SHARE
from shallow_mirror.sinks.kafka.targets.log_append_time import LogAppendTimeTopics
from shallow_mirror.sinks.routing import RoutedTopic
from shallow_mirror.sinks.slot_results import SlotResult
from shallow_mirror.streaming.runner.sink_config import job_template
from shallow_mirror.types import BatchLimits, SourcePartition, TargetPartition
from shallow_mirror.wire.crc import verify_crc

START_MS = 120_000
ROUND_BYTES = 16 << 20
"""About so much is in memory, and in one transaction; at least one batch."""


def retry(
    config: MirrorConfig,
    selection: Selection,
    spark: Any = None,
    *,
    takes_over: bool = False,
    observer: Observer = observe_nothing,
) -> Released:
    """May be called again after any error: what was decided until then is not done twice.

    `spark`: the session of `session_for_tables`. `takes_over`: also from a run that seems to be alive.

    Raises ConfigError (such a run, nothing at that offset, a target that is another topic now), RecoverNeededError, FencedError,
    OutcomeUnknownError, OffsetMapConflictError (the table has lost a batch), RetriableError.
    """
    quarantine = Quarantine.open(config.table_storage, spark, mirror=config.mirror)
    if not _in_quarantine(selection.entries(quarantine)):
        return Released()
    if not takes_over:
        _refuse_beside_a_run(config, spark)
    deadline = Deadline.after_ms(START_MS, time.monotonic)
    with taken_over(config, "quarantine retry", deadline, spark=spark, observer=observer) as taken:
        recover(taken.owner, taken.performer, mirror=config.mirror, deadline=deadline)
        releaser = Releaser(taken.single_slot(config, observer), _KeptSlot(config, taken, observer).fill)
        _release_all(releaser, Quarantine.open(config.table_storage, spark, mirror=config.mirror), selection)
        taken.owner.settle()
        released = releaser.released
        counts = f"{counted(released.batch_count, 'batch')} released, {len(released.refused)} refused again"
        taken.outcome = f"quarantine retry: {counts}"
    return released


def _refuse_beside_a_run(config: MirrorConfig, spark: Any) -> None:
    run = run_of(config, spark)
    if run is not None and run.is_alive:
        raise ConfigError(
            f"the mirror {config.mirror} runs (run {run.run_epoch}, pid {run.pid} on {run.host}): stop it first, or take it over "
            "with --take-over: it then ends with exit code 3"
        )


def _in_quarantine(entries: Sequence[QuarantineEntry]) -> list[QuarantineEntry]:
    return [one for one in entries if not one.is_released]


def _release_all(releaser: Releaser, quarantine: Quarantine, selection: Selection) -> None:
    """`quarantine` as it is after the take-over: what another retry has released is not in it any more."""
    for entries in _rounds(_in_quarantine(selection.entries(quarantine))):
        kept = [quarantine.batch(one) for one in entries]
        damaged = [one for one in kept if not verify_crc(memoryview(one.batch))]
        releaser.released.refused += damaged  # no target will ever take them
        releaser.release([one for one in kept if one not in damaged])


class _KeptSlot:
    """Fills a slot with batches of the quarantine, as a task does with those of the source."""

    def __init__(self, config: MirrorConfig, taken: TakenOver, observer: Observer) -> None:
        self._config, self._taken, self._observer = config, taken, observer
        self._stamping = LogAppendTimeTopics()

    def fill(self, batches: Sequence[QuarantinedBatch], decision: int, deadline: Deadline) -> SlotResult:
        positions: dict[SourcePartition, int] = {}
        for one in batches:
            positions.setdefault(one.source, one.source_start)
        job = self._job(batches, positions, decision, deadline)
        readings = QuarantineReadings(batches)
        deadline = deadline.sooner(job.time_left_ms)
        target = KafkaSlotTarget(job, SINGLE_SLOT, self._taken.target, deadline)
        return fill_slot(job, SINGLE_SLOT, readings, positions, target, deadline)

    def _job(
        self, batches: Sequence[QuarantinedBatch], positions: Mapping[SourcePartition, int], decision: int, deadline: Deadline
    ) -> SlotJob:
        config, taken = self._config, self._taken
        template = job_template(config, map_id=taken.owner.map_id, run_id=taken.run.run_id, observer=self._observer)
        return replace(
            template,
            decision=decision,
            routes={batches[0].source.topic: self._route(batches[0].target, deadline)},
            positions=positions,
            target_ends=target_ends_of(taken.owner.positions().values()),
            time_left_ms=template.transaction_timeout_ms * TASK_SHARE,
            quarantine=NO_LIMITS,
        )

    def _route(self, target: TargetPartition, deadline: Deadline) -> RoutedTopic:
        """With the settings that the target topic has now. Raises ConfigError where it is not what was copied to before."""
        found = self._taken.target.metadata([target.topic], deadline).topics.get(target.topic)
        if found is None or found.error_code or found.topic_id != target.topic_id:
            raise ConfigError(
                f"target topic {target.topic} is not there any more, or was created again since its batches were quarantined: "
                "export them instead"
            )
        settings = self._taken.target.topic_configs([target.topic], deadline)[target.topic]
        self._stamping.configured(target.topic, settings)
        limits = BatchLimits(
            max_message_bytes=int(settings["max.message.bytes"]),
            isolation_level=self._config.read.isolation_level,
            log_append_time=self._config.read.log_append_time,
        )
        return RoutedTopic(target_topic=target.topic, target_topic_id=target.topic_id, limits=limits)


def _rounds(entries: Sequence[QuarantineEntry]) -> Iterator[list[QuarantineEntry]]:
    """Of one source topic each, and of about ROUND_BYTES."""
    together: list[QuarantineEntry] = []
    for one in entries:
        size_bytes = sum(each.segment.size_bytes for each in (*together, one))
        if together and (size_bytes > ROUND_BYTES or _topic(one) != _topic(together[0])):
            yield together
            together = []
        together.append(one)
    if together:
        yield together


def _topic(entry: QuarantineEntry) -> tuple[str, str, str]:
    return entry.segment.source.topic, entry.segment.source.topic_id, entry.segment.target.topic
