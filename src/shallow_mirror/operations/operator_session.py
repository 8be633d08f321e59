"""Driver: an operator's command as a run of the mirror: it takes over the offset map and has a row in `runs`, as a start does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import ArchiveTable, OffsetMapOwner, RunIdentity
from shallow_mirror.checkpoints.logs.runs import RunHistory
from shallow_mirror.checkpoints.tables import MirrorStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.sinks.kafka import SINGLE_SLOT, RunGuard, SingleSlot, transactional_id
from shallow_mirror.sinks.kafka.protocol import TxnPerformer, actions, recover
from shallow_mirror.streaming.runs import ClusterIds, decide_first_rows, take_over_offset_map
from shallow_mirror.version import __version__


@dataclass(slots=True)
class OperatorSession:
    """`outcome` is recorded in `runs` when the block ends: set it there. `source`: None for a restore, which reads no cluster."""

    run: RunIdentity
    owner: OffsetMapOwner
    performer: TxnPerformer
    guard: RunGuard
    source: Cluster | None
    target: Cluster
    outcome: str

    def recover(self, mirror: str, deadline: Deadline, choices: actions.Choices = actions.NO_CHOICES) -> None:
        """Resolve what the last run decided, as a start does, with the guard: a run with a copy of the tables decides no more.

        Raises as `txn_performer.recover`.
        """
        recover(self.owner, self.performer, mirror=mirror, deadline=deadline, choices=choices, guard=self.guard)

    def register(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> None:
        """Add first rows of partitions, after the recovery. Raises RetriableError where another run has taken the guard."""
        self.guard.require(deadline, is_begun_enough=False)
        decide_first_rows(self.owner, rows)

    def single_slot(self, config: MirrorConfig | RestoreConfig, observer: Observer) -> SingleSlot:
        """Return the slot of the command, after the recovery: before, its transactional id may have an open transaction."""
        return SingleSlot(
            self.owner,
            self.performer,
            self.guard,
            transactional_id=transactional_id(config.mirror, SINGLE_SLOT),
            transaction_timeout_ms=config.write.transaction_timeout_ms,
            observer=observer,
        )


@contextmanager
def open_operator_session(
    config: MirrorConfig | RestoreConfig,
    command: str,
    deadline: Deadline,
    *,
    spark: Any,
    observer: Observer = observe_nothing,
    accepted_version: int = 0,
) -> Iterator[OperatorSession]:
    """Take over the offset map for the block.

    `spark`: the session of `session_for_tables`. `accepted_version`: as in `OffsetMapOwner.take_over`.

    Raises ConfigError, OffsetMapConflictError, OutcomeUnknownError, RetriableError.
    """
    storage = MirrorStorage.to_write(config.table_location, config.tables_writer, spark)
    run = RunIdentity.of_this_process()
    storage.require_conditional_writes()
    with _source_of(config) as source, closing(Cluster(config.target.client)) as target:
        ids = ClusterIds(
            source=_source_cluster_id(config, source, deadline, spark),
            target=reach(target, config.target_cluster_name, deadline).cluster_id,
        )
        owner = take_over_offset_map(config, storage, ids, run, accepted_version=accepted_version)
        observations = RunHistory(storage.background_tables())
        observations.run_started(owner.run_epoch, run, __version__)
        performer = TxnPerformer(owner, target, transaction_timeout_ms=config.write.transaction_timeout_ms, observer=observer)
        guard = RunGuard(target, config.mirror, config.write.transaction_timeout_ms)
        session = OperatorSession(run, owner, performer, guard, source, target, f"{command}: failed")
        try:
            yield session
        finally:
            observations.run_ended(owner.run_epoch, run, session.outcome)


@contextmanager
def _source_of(config: MirrorConfig | RestoreConfig) -> Iterator[Cluster | None]:
    if config.source_client is None:
        yield None
        return
    with closing(Cluster(config.source_client)) as source:
        yield source


def _source_cluster_id(config: MirrorConfig | RestoreConfig, source: Cluster | None, deadline: Deadline, spark: Any) -> str:
    """Return the id of the source cluster; for a restore that of the cluster that was archived, as the archive records it."""
    if isinstance(config, RestoreConfig):
        return ArchiveTable.open(config.archive_table_location, spark).source_cluster_id
    assert source is not None
    return reach(source, config.source_cluster_name, deadline).cluster_id
