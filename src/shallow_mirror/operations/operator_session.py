"""Driver: an operator's command as a run of the mirror: it takes over the offset map and has a row in `runs`, as a start does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap
from shallow_mirror.checkpoints.ledger import ArchiveTable, RunIdentity
from shallow_mirror.checkpoints.logs.runs import RunEnd, recorded_run
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.sinks.kafka import SINGLE_SLOT, SingleSlot, transactional_id
from shallow_mirror.streaming.runs import ClusterIds, KafkaAttempt, decide_first_rows, take_over_offset_map
from shallow_mirror.version import __version__

_VISIBLE_MS = 60_000.0
"""How long a target partition may have no leader."""

_ABORTED_WITHIN_MS = 30_000.0
"""Coordinators look for transactions that have timed out every 10 seconds."""

_POLL_MS = 500


@dataclass(slots=True, kw_only=True)
class OperatorSession(KafkaAttempt):
    """An operator's command as an attempt that is not repeated."""

    end: RunEnd
    """What `runs` says of the command when the block ends."""

    def register(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> None:
        """Add rows without a transaction, after the recovery. Raises RetriableError if another run has taken the guard."""
        self.guard.require(deadline, is_begun_enough=False)
        decide_first_rows(self.owner, rows)

    def await_visible(self) -> None:
        """Wait until readers see what was committed: no later micro-batch looks at it again.

        Raises RetriableError if they do not within the transaction timeout, by which what a killed command has left open is over,
        and if committed rows turn out to be aborted.
        """
        patience_ms = max(_VISIBLE_MS, self.config.write.transaction_timeout_ms + _ABORTED_WITHIN_MS)
        deadline = Deadline.after_ms(patience_ms, time.monotonic)
        while self.performer.availability.pending:
            if removed := self.performer.recheck_unavailable(deadline):
                raise RetriableError("TRANSACTION_ABORTED", f"{', '.join(map(str, removed))}: the same command copies them again")
            if deadline.is_over():
                self.performer.require_visible()
            self.target.wait(_POLL_MS, deadline)

    def single_slot(self) -> SingleSlot:
        """Return the slot of the command, after the recovery: before, its transactional id may have an open transaction."""
        return SingleSlot(
            self.owner,
            self.performer,
            self.guard,
            transactional_id=transactional_id(self.config.mirror, SINGLE_SLOT),
            transaction_timeout_ms=self.config.write.transaction_timeout_ms,
            observer=self.observer,
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
    reads_source: bool = True,
    expected: ClusterIds | None = None,
) -> Iterator[OperatorSession]:
    """Take over the offset map for the block. `expected`: the clusters that it has to be of, where it may be a new one.

    `spark`: the session of `session_for_tables`. `accepted_version`: as in `LedgerOwner.take_over`.
    Without `reads_source` the source is not asked for anything: it may be gone, and there has to be a map.

    Raises ConfigError, OffsetMapConflictError, OutcomeUnknownError, RetriableError.
    """
    storage = TableStorage.to_write(config.table_location, config.tables_writer, spark)
    run = RunIdentity.of_this_process()
    storage.require_conditional_writes()
    with ExitStack() as connections:
        target = connections.enter_context(closing(Cluster(config.target.client)))
        source = None
        if reads_source and config.source_client is not None:
            source = connections.enter_context(closing(Cluster(config.source_client)))
        ids = ClusterIds(
            source=_source_cluster_id(config, source, deadline, spark),
            target=reach(target, config.target_cluster_name, deadline).cluster_id,
        )
        if expected is not None:
            _require_clusters(ids, expected)
        owner = take_over_offset_map(config, storage, ids, run, accepted_version=accepted_version)
        with recorded_run(storage.background_tables(), owner.run_epoch, run, __version__, f"{command}: failed") as end:
            yield OperatorSession(
                config=config, identity=run, owner=owner, source=source, target=target, observer=observer, end=end
            )


def _require_clusters(ids: ClusterIds, expected: ClusterIds) -> None:
    found = [("source", ids.source, expected.source), ("target", ids.target, expected.target)]
    problems = [
        f"the {side} is another cluster (id {cluster_id}) than that of the mirror's offset map (id {expected_id}): check the "
        f"bootstrap.servers of {side}.client"
        for side, cluster_id, expected_id in found
        if cluster_id != expected_id
    ]
    if problems:
        raise ConfigError(problems)


def _source_cluster_id(config: MirrorConfig | RestoreConfig, source: Cluster | None, deadline: Deadline, spark: Any) -> str:
    """Return the id of the source cluster; for a restore that of the cluster that was archived, as the archive records it."""
    if isinstance(config, RestoreConfig):
        return ArchiveTable.open(config.archive_table_location, spark).source_cluster_id
    if source is None:
        return OffsetMap.open(config.table_location, spark, mirror=config.mirror).source_cluster_id
    return reach(source, config.source_cluster_name, deadline).cluster_id
