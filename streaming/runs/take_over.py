"""Driver: the take-over of the offset map by a mirror, a restore or an operator's command, and its attempts to write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks import Observer
from shallow_mirror.sinks.kafka import RunGuard, id_count, transactional_ids
from shallow_mirror.sinks.kafka.protocol import TxnPerformer, actions, recover, refuse_used_ids
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIds:
    """Ids of the clusters between which the map translates offsets. `source`: for a restore, of the cluster that was archived."""

    source: str
    target: str


def take_over_offset_map(
    config: MirrorConfig | RestoreConfig,
    storage: TableStorage,
    ids: ClusterIds,
    run: RunIdentity,
    *,
    before_creation: Callable[[], None] = lambda: None,
    accepted_version: int = 0,
) -> LedgerOwner:
    """Create the map if there is none, unless `before_creation` raises, and fence every older run.

    Arguments and errors are those of `LedgerOwner.take_over`.
    """
    return LedgerOwner.take_over(
        storage,
        name=config.mirror,
        source_cluster_id=ids.source,
        target_cluster_id=ids.target,
        run=run,
        now_ms=lambda: int(time.time() * 1000),
        before_creation=before_creation,
        # With the spare ids: a later start fences every id that this run may use, also if it decides nothing.
        slots=id_count(config.write.slots),
        accepted_version=accepted_version,
    )


def refuse_ids_of_another(config: MirrorConfig | RestoreConfig, target: Cluster, deadline: Deadline) -> None:
    """Raise as `refuse_used_ids` if one of the transactional ids of this mirror or restore was used in the target before."""
    refuse_used_ids(target, transactional_ids(config.mirror, id_count(config.write.slots)), deadline)


@dataclass(slots=True, kw_only=True)
class KafkaAttempt:
    """One attempt of a run, or of an operator's command, to write to the target as the owner of its offset map.

    An attempt that failed leaves transactions and partitions of unknown state with its performer: the next attempt has another.
    """

    config: MirrorConfig | RestoreConfig
    identity: RunIdentity
    owner: LedgerOwner
    source: Cluster | None
    """None for a restore, which reads no cluster."""
    target: Cluster
    observer: Observer
    performer: TxnPerformer = field(init=False)
    guard: RunGuard = field(init=False)
    """Taken by `recover`."""

    def __post_init__(self) -> None:
        timeout_ms = self.config.write.transaction_timeout_ms
        self.performer = TxnPerformer(
            self.owner, self.target, transaction_timeout_ms=timeout_ms, observer=self.observer, source=self.source
        )
        self.guard = RunGuard(self.target, self.config.mirror, timeout_ms)

    def recover(self, deadline: Deadline, choices: actions.Choices = actions.NO_CHOICES) -> None:
        """Resolve the last decision, with the guard: a run with a copy of the tables decides no more.

        Raises as `txn_performer.recover`.
        """
        mirror = self.config.mirror
        recover(self.owner, self.performer, mirror=mirror, deadline=deadline, choices=choices, guard=self.guard)

    def job_template(self) -> KafkaSlotJob:
        """Return the job of a slot without the values of one micro-batch."""
        run_id = self.identity.run_id
        return KafkaSlotJob.template(self.config, map_id=self.owner.map_id, run_id=run_id, observer=self.observer)
