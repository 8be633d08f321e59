"""Two strict fakes with a mirrored topic and a map of it, and a source that logs what groups commit, as coordinators do."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fakes.coordinators import Committed
from tests.fakes.strict_broker import StrictCluster
from tests.support.group_log import commit_batch, commit_key, commit_value
from tests.support.mirror_runs import wait_for
from tests.support.record_batches import batch, marker

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.commit_sources import FollowedCommits
from shallow_mirror.groups.report import GroupLag
from shallow_mirror.groups.sync import GroupSyncer
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition, TopicPartition

LOG, TOPIC = "__consumer_offsets", "orders"
LOG_PARTITIONS = 2
RECORDS = 1_000
TXN = SlotTxn("m-0", 1, 1)


class FollowedWorld(AbstractContextManager["FollowedWorld"]):
    """`orders` has two partitions of RECORDS records on both clusters; record n of the source is record n of the target.

    The map covers the first 100 records, until `mirror` says more.
    """

    def __init__(self, folder: Path, **groups: Any) -> None:
        self._folder, self._settings = folder, {"sync": "30 seconds", **groups}

    def __enter__(self) -> Self:
        self.source, self.target = StrictCluster(cluster_id="east-id"), StrictCluster(cluster_id="west-id")
        self.source.__enter__()
        self.target.__enter__()
        for cluster in (self.source, self.target):
            cluster.create_topic(TOPIC, 2)
            for partition in range(2):
                cluster.seed((TOPIC, partition), batch(0, RECORDS))
        self.source.create_topic(LOG, LOG_PARTITIONS)
        self.config = MirrorConfig.from_document(
            {
                "mirror": "m",
                "source": {"alias": "east", "client": {"bootstrap.servers": self.source.bootstrap}},
                "target": {"alias": "west", "client": {"bootstrap.servers": self.target.bootstrap}},
                "topics": {"include": [TOPIC]},
                "tables": str(self._folder / "tables"),
                "groups": self._settings,
            },
            folder=self._folder,
        )
        self.owner = LedgerOwner.take_over(
            self.config.tables,
            name="m",
            source_cluster_id="east-id",
            target_cluster_id="west-id",
            run=RunIdentity(run_id="r", host="here", pid=7, started_at_ms=1_000),
            now_ms=lambda: 1_000,
        )
        self.owner.settle()
        self._mirrored = 0
        self.mirror(100)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.source.__exit__(kind, error, trace)
        self.target.__exit__(kind, error, trace)

    def syncer(self, **options: Any) -> GroupSyncer:
        storage = TableStorage(self.config.tables)
        return GroupSyncer(self.config, storage, storage.best_effort_tables(), **options)

    def mirror(
        self, until: int, *, since: int | None = None, moved_by: int = 0, txn: SlotTxn = TXN, is_pending: bool = False
    ) -> None:
        """Decide both partitions up to an offset. `since`: by default where the last call ended. `moved_by`: at the target."""
        first = self._mirrored if since is None else since
        self.owner.next_decision()
        ids = [
            base64.urlsafe_b64encode(cluster.topic_ids[TOPIC].bytes).decode().rstrip("=")
            for cluster in (self.source, self.target)
        ]
        made = [
            Segment(
                source=SourcePartition(TOPIC, ids[0], partition),
                source_start=first,
                source_end=until,
                kind=SegmentKind.DATA,
                target=TargetPartition(TOPIC, ids[1], partition),
                target_start=first + moved_by,
                target_end=until + moved_by,
                record_count=until - first,
                batch_count=1,
            )
            for partition in range(2)
        ]
        self.owner.decide([DecidedSegment(segment, txn) for segment in made], highest_slot=0)
        self.owner.settle(pending=[txn] if is_pending else [])
        self._mirrored = until

    def commit(self, offset: int, group: str = "billing", partition: int = 0, *, producer_id: int | None = None) -> int:
        """Commit at the source, and log it; of a transaction it is logged only. Return its offset in the log."""
        logged_at = self.log_end()
        if producer_id is None:
            self.answer(offset, group, partition)
        value = commit_value(offset, f"of {offset}", int(time.time() * 1000))
        self.log([(commit_key(group, TOPIC, partition), value)], -1 if producer_id is None else producer_id)
        return logged_at

    def answer(self, offset: int, group: str = "billing", partition: int = 0) -> None:
        """Let the coordinator of the source answer with an offset."""
        with self.source.lock:
            self.source.groups.commit_now(group, (TOPIC, partition), Committed(offset, f"of {offset}"))

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        self.source.seed((LOG, 0), marker(self.log_end(), int(is_committed), producer_id))

    def log(self, records: Sequence[tuple[bytes, bytes | None]], producer_id: int = -1) -> None:
        now_ms = int(time.time() * 1000)
        self.source.seed((LOG, 0), commit_batch(self.log_end(), records, producer_id=producer_id, timestamp=now_ms))

    def log_end(self) -> int:
        return self.source.log(LOG).end_offset

    def reset(self, offset: int, group: str = "billing", partition: int = 0) -> None:
        """Commit at the target, as an operator or an application does."""
        with self.target.lock:
            self.target.groups.commit_now(group, (TOPIC, partition), Committed(offset, "theirs"))

    def offset(self, group: str = "billing", partition: int = 0) -> int | None:
        """Return the offset of a group at the target."""
        with self.target.lock:
            committed = self.target.groups.offsets.get((group, (TOPIC, partition)))
        return None if committed is None else committed.offset

    def step(self, syncer: GroupSyncer) -> GroupLag:
        """Do a step when all of the log has arrived, however busy this machine is."""
        source, log = syncer._source, TopicPartition(LOG, 0)
        assert isinstance(source, FollowedCommits)

        def is_read() -> bool:
            source.read()
            return source._consumer.position(log) >= self.log_end()

        wait_for("the log", is_read)
        return syncer.step()

    def is_at_target(self, offset: int) -> bool:
        return self.offset() == offset
