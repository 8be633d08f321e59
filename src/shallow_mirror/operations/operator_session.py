"""Driver: an operator's command as a run of the mirror: it takes the map over, as a start does, and is noted like one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connectivity import reach
from shallow_mirror.checkpoints.backends.best_effort_table import open_store
from shallow_mirror.checkpoints.backends.conditional_put_probe import require_conditional_puts
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.run_history import Observations
from shallow_mirror.checkpoints.storage import choose_writer, open_writer
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.protocol.recovery import TxnPerformer
from shallow_mirror.sinks.kafka.single_slot import SINGLE_SLOT, SingleSlot
from shallow_mirror.sinks.kafka.targets.transactional_ids import transactional_id
from shallow_mirror.version import __version__


@dataclass(slots=True)
class TakenOver:
    """`outcome` is what is noted of the run when it ends: to be set by whoever knows."""

    run: RunIdentity
    owner: OffsetMapOwner
    performer: TxnPerformer
    source: Cluster
    target: Cluster
    outcome: str

    def single_slot(self, config: MirrorConfig, observer: Observer) -> SingleSlot:
        """After the recovery."""
        return SingleSlot(
            self.owner,
            self.performer,
            transactional_id=transactional_id(config.mirror, SINGLE_SLOT),
            transaction_timeout_ms=config.write.transaction_timeout_ms,
            observer=observer,
        )


@contextmanager
def taken_over(
    config: MirrorConfig, command: str, deadline: Deadline, *, spark: Any, observer: Observer = observe_nothing
) -> Iterator[TakenOver]:
    """`spark`: the session of `session_for_tables`. Raises ConfigError, OffsetMapConflictError, OutcomeUnknownError,
    RetriableError.
    """
    writer, run = choose_writer(config.table_storage, config.tables_writer), RunIdentity.of_this_process()
    if writer == "deltalake":
        require_conditional_puts(config.table_storage)
    with closing(Cluster(config.source.client)) as source, closing(Cluster(config.target.client)) as target:
        owner = OffsetMapOwner.take_over(
            config.table_storage,
            mirror=config.mirror,
            source_cluster_id=reach(source, config.source_cluster_name, deadline).cluster_id,
            target_cluster_id=reach(target, config.target_cluster_name, deadline).cluster_id,
            run=run,
            now_ms=lambda: int(time.time() * 1000),
            writer=open_writer(config.table_storage, writer, spark),
            slots=config.write.slots,
        )
        observations = Observations(config.table_storage, store=open_store(config.table_storage, writer, spark))
        observations.run_started(owner.run_epoch, run, __version__)
        performer = TxnPerformer(owner, target, transaction_timeout_ms=config.write.transaction_timeout_ms, observer=observer)
        taken = TakenOver(run, owner, performer, source, target, f"{command}: failed")
        try:
            yield taken
        finally:
            observations.run_ended(owner.run_epoch, run, taken.outcome)
