"""Driver, for the cli: another attempt to write the batches in quarantine, at the target's end, exactly once.

It takes over the offset map, as a start does, and resolves what the last run decided. Then rounds of
`sinks/kafka/quarantine_release.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shallow_mirror.broker.cluster import gone_topics
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.checkpoints.logs import Quarantine, QuarantinedBatch, QuarantineEntry
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.config.values import TASK_SHARE
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.operations.operator_session import OperatorSession, open_operator_session
from shallow_mirror.operations.quarantine import Selection, in_quarantine
from shallow_mirror.operations.recover import require_newest_tables
from shallow_mirror.operations.status import read_run
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import Observer, RoutedTopic, SlotResult, observe_nothing
from shallow_mirror.sinks.kafka import SINGLE_SLOT, NewestControl, QuarantineReadingFactory, Releaser, ReleaseResult
from shallow_mirror.sinks.kafka.targets.settings import LogAppendTimeTopics
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob, KafkaSlotTarget, target_ends_of
from shallow_mirror.sinks.slots import UNLIMITED_QUARANTINE, SlotInput, fill_slot
from shallow_mirror.types import BatchLimits, SourcePartition, TargetPartition
from shallow_mirror.wire import verify_crc

START_MS = 120_000
ROUND_BYTES = 16 << 20
"""About the size of one transaction, which is also held in memory; at least one batch."""


def retry(
    config: MirrorConfig | RestoreConfig,
    selection: Selection,
    spark: Any = None,
    *,
    takes_over: bool = False,
    observer: Observer = observe_nothing,
) -> ReleaseResult:
    """Release the selected batches. Safe to call again after any error: decided batches are not written twice.

    `spark`: the session of `session_for_tables`. `takes_over`: also from a run that seems to be alive.

    Raises ConfigError (such a run, a mirror that was failed over, nothing at that offset), OlderTablesError, RecoverNeededError,
    FencedError, OutcomeUnknownError, OffsetMapConflictError (the table has lost a batch), RetriableError.
    """
    storage = TableStorage(config.table_location, spark)
    entries, moved_counts = _selected(config, selection, storage)
    if not entries:
        require_newest_tables(config, spark)  # older ones may lack the selected batches
        return ReleaseResult(moved_counts=moved_counts)
    if not takes_over:
        _require_stopped(config, spark)
    deadline = Deadline.after_ms(START_MS, time.monotonic)
    with open_operator_session(
        config, "quarantine retry", deadline, spark=spark, observer=observer, reads_source=False
    ) as session:
        session.recover(deadline)
        releaser = Releaser(session.single_slot(), _QuarantineSlot(config, session).fill)
        if isinstance(config, MirrorConfig):
            NewestControl(config.target.client, config.mirror, session.owner.map_id).require_in(Controls.open(storage).read)
        # Read again: another retry may have released batches until the take-over, and a topic may have been handed over. From
        # here on a hand-over waits for a run of the mirror, which takes over first.
        entries, releaser.released.moved_counts = _selected(config, selection, storage)
        entries, releaser.released.gone_counts = _without_gone(entries, session, deadline)
        _release_all(releaser, Quarantine.open(storage, mirror=config.mirror), entries)
        session.await_visible()
        session.owner.settle()
        released = releaser.released
        counts = f"{counted(released.batch_count, 'batch')} released, {len(released.refused)} refused again"
        session.end.outcome = f"quarantine retry: {counts}"
    return released


def _require_stopped(config: MirrorConfig | RestoreConfig, spark: Any) -> None:
    run = read_run(config, spark)
    if run is not None and run.is_alive:
        raise ConfigError(
            f"the mirror {config.mirror} is running (run {run.run_epoch}, pid {run.pid} on {run.host}): stop it first, or take "
            "over with --take-over: it then ends with exit code 3"
        )


def _selected(
    config: MirrorConfig | RestoreConfig, selection: Selection, storage: TableStorage
) -> tuple[list[QuarantineEntry], dict[str, int]]:
    """Return the batches to release, and how many of the selected ones stay, by source topic.

    Those of topics that a migration has handed over stay: others write to the copy, and the mirror in the other direction would
    bring the records back to where they come from. Raises ConfigError if the mirror was failed over.
    """
    controls = Controls.open(storage).read()
    if problem := controls.failed_over_problem(config.mirror, config.target.alias):
        raise ConfigError(problem)
    entries = in_quarantine(selection.entries(Quarantine.open(storage, mirror=config.mirror)), storage)
    moved = Counter(entry.segment.source.topic for entry in entries if entry.segment.source.topic in controls.moving)
    return [entry for entry in entries if entry.segment.source.topic not in moved], dict(sorted(moved.items()))


def _without_gone(
    entries: Sequence[QuarantineEntry], session: OperatorSession, deadline: Deadline
) -> tuple[list[QuarantineEntry], dict[str, int]]:
    """Return the batches whose target topics are there, and how many of the others there are, by target topic.

    Raises RetriableError.
    """
    targets = {(entry.segment.target.topic, entry.segment.target.topic_id) for entry in entries}
    # One name may have had several ids, of which one is there at most.
    gone = {target for target in targets if gone_topics(session.target, dict([target]), deadline)}
    staying = Counter(entry.segment.target.topic for entry in entries if _target_of(entry) in gone)
    return [entry for entry in entries if _target_of(entry) not in gone], dict(sorted(staying.items()))


def _target_of(entry: QuarantineEntry) -> tuple[str, str]:
    return entry.segment.target.topic, entry.segment.target.topic_id


def _release_all(releaser: Releaser, quarantine: Quarantine, selected: Sequence[QuarantineEntry]) -> None:
    for entries in _rounds(selected):
        batches = [quarantine.batch(entry) for entry in entries]
        damaged = [batch for batch in batches if not verify_crc(memoryview(batch.batch))]
        releaser.released.refused += damaged  # no broker accepts them
        releaser.release([batch for batch in batches if batch not in damaged])


class _QuarantineSlot:
    """Fills a slot with batches of the quarantine, as a task does with those of the source."""

    def __init__(self, config: MirrorConfig | RestoreConfig, session: OperatorSession) -> None:
        self._config = config
        self._session = session
        self._stamping = LogAppendTimeTopics()

    def fill(self, batches: Sequence[QuarantinedBatch], decision: int, deadline: Deadline) -> SlotResult:
        positions: dict[SourcePartition, int] = {}
        for batch in batches:
            positions.setdefault(batch.source, batch.source_start)
        job = self._job(batches, positions, decision, deadline)
        source = SlotInput(number=SINGLE_SLOT, readings=QuarantineReadingFactory(batches), positions=positions)
        deadline = deadline.sooner(job.time_left_ms)
        target = KafkaSlotTarget(job, SINGLE_SLOT, self._session.target, deadline)
        return fill_slot(job, source, target, deadline)

    def _job(
        self, batches: Sequence[QuarantinedBatch], positions: Mapping[SourcePartition, int], decision: int, deadline: Deadline
    ) -> KafkaSlotJob:
        template = self._session.job_template()
        return replace(
            template,
            decision=decision,
            routes={batches[0].source.topic: self._route(batches[0].target, deadline)},
            positions=positions,
            target_ends=target_ends_of(self._session.owner.positions().values()),
            time_left_ms=template.transaction_timeout_ms * TASK_SHARE,
            quarantine=UNLIMITED_QUARANTINE,
        )

    def _route(self, target: TargetPartition, deadline: Deadline) -> RoutedTopic:
        """Return the route with the current settings of the target topic.

        Raises RetriableError if the broker that is asked does not have it: the next call finds out whether it is gone.
        """
        topic = self._session.target.metadata([target.topic], deadline).topics[target.topic]
        if topic.error_code or topic.topic_id != target.topic_id:
            name = error_name(topic.error_code or UNKNOWN_TOPIC_OR_PARTITION)
            raise RetriableError(name, f"a broker of the target does not know target topic {target.topic} (id {target.topic_id})")
        settings = self._session.target.topic_configs([target.topic], deadline)[target.topic]
        self._stamping.configured(target.topic, settings)
        limits = BatchLimits(
            max_message_bytes=int(settings["max.message.bytes"]),
            isolation_level=self._config.read.isolation_level,
            log_append_time=self._config.read.log_append_time,
        )
        return RoutedTopic(target_topic=target.topic, target_topic_id=target.topic_id, limits=limits)


def _rounds(entries: Sequence[QuarantineEntry]) -> Iterator[list[QuarantineEntry]]:
    """Yield lists of entries of one source topic each, and of about ROUND_BYTES."""
    pending: list[QuarantineEntry] = []
    for entry in entries:
        size_bytes = sum(queued.segment.size_bytes for queued in (*pending, entry))
        if pending and (size_bytes > ROUND_BYTES or _topics(entry) != _topics(pending[0])):
            yield pending
            pending = []
        pending.append(entry)
    if pending:
        yield pending


def _topics(entry: QuarantineEntry) -> tuple[str, str, str]:
    return entry.segment.source.topic, entry.segment.source.topic_id, entry.segment.target.topic
