"""An archive of two topics, and restores of it in the process of the test, into a strict cluster that creates topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, OTHER, PAYMENTS, ArchiveOfTest, archive_config
from tests.support.inline_session import InlineSession
from tests.support.mirror_runs import CrashAt, CrashError
from tests.support.own_worker_clients import own_worker_clients
from tests.support.record_batches import batch, record

from shallow_mirror.checkpoints.ledger import ArchivedTopics, TopicDescription
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.restore.dry_run import RestoreDryRun, dry_run
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.streaming.runs import Restore, restore as restore_run
from shallow_mirror.streaming.runs.preserved_restore import PreservedRestore

WEEK_MS = 7 * 86_400_000
PRESERVED: Mapping[str, Any] = {"offsets": {".*": "preserved"}}


def keyed(base_offset: int, count: int) -> bytes:
    """Return a batch of 2023."""
    return batch(base_offset, count, timestamp=NOW_MS, payload=b"".join(record(delta, b"key") for delta in range(count)))


class InlineRestores:
    """`orders` has ten records in partition 0 and two in partition 1, `payments` has seven, in two decisions, of 2023.

    `configs`: the archived settings of both topics.
    """

    def __init__(self, folder: Path, target: StrictCluster) -> None:
        self.folder, self.target, self._described = folder, target, 0
        self.archive = ArchiveOfTest(archive_config(folder))
        self.archive.archive({ORDERS: [keyed(0, 5)], OTHER: [keyed(0, 2)], PAYMENTS: [keyed(0, 3)]})
        self.archive.archive({ORDERS: [keyed(5, 5)], PAYMENTS: [keyed(3, 4)]})
        self.describe({"retention.ms": str(WEEK_MS), "retention.bytes": "-1", "cleanup.policy": "delete"})

    def describe(self, configs: Mapping[str, str]) -> None:
        topics = ArchivedTopics.of(TableStorage(self.archive.config.table_location))
        descriptions = [
            TopicDescription(topic=source.topic, topic_id=source.topic_id, partitions=count, configs=configs)
            for source, count in ((ORDERS, 2), (PAYMENTS, 1))
        ]
        self._described += 1
        topics.record(descriptions, run_epoch=1, micro_batch=self._described, at_ms=NOW_MS + self._described)

    def document(self, include: Sequence[str] = ("orders",), **settings: Any) -> dict[str, Any]:
        topics = {"include": list(include), **settings.pop("topics", {})}
        groups: dict[str, Any] = {"restore": "back", "topics": topics, "groups": {"commit": "off"}, **settings}
        return restore_runs.document(self.archive.config, self.target.bootstrap, **groups)

    def config(self, include: Sequence[str] = ("orders",), **settings: Any) -> RestoreConfig:
        return RestoreConfig.from_document(self.document(include, **settings), folder=self.folder)

    def restore(self, include: Sequence[str] = ("orders",), **settings: Any) -> tuple[str, ...]:
        return Restore(self.config(include, **settings)).run(InlineSession())

    def crash(self, point: str, include: Sequence[str] = ("orders",), **settings: Any) -> None:
        """Restore, and be killed at a point."""
        with pytest.raises(CrashError):
            Restore(self.config(include, **settings), observer=CrashAt(point)).run(InlineSession())

    def dry_run(self, include: Sequence[str] = ("orders",), **settings: Any) -> RestoreDryRun:
        return dry_run(self.config(include, **settings))

    def refusal(self, include: Sequence[str] = ("orders",), **settings: Any) -> str:
        """Return why a dry run and a start with this file are refused, which have to say the same."""
        with pytest.raises(ConfigError) as of_dry_run:
            self.dry_run(include, **settings)
        with pytest.raises(ConfigError) as of_start:
            self.restore(include, **settings)
        assert of_dry_run.value.problems == of_start.value.problems
        return "\n".join(of_start.value.problems)

    def records(self, target: str, partition: int = 0) -> int:
        """Return how many records the log has, without markers."""
        log = self.target.log(target, partition)
        return sum(each.header.records_count for each in log.batches if not each.header.is_control)

    def settings(self, target: str) -> dict[str, str]:
        return self.target.log(target).configs


@contextmanager
def inline_restores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InlineRestores]:
    """Run restores for the block. Preserved offsets are not tried."""

    def prepare(preserved: PreservedRestore, _deadline: object) -> None:
        preserved.guard_times = GuardTimes(expiration_ms=86_400_000, quiet_ms=900_000)

    monkeypatch.setattr(PreservedRestore, "prepare", prepare)
    monkeypatch.setattr(restore_run, "refuse_ids_of_another", lambda *_: None)
    with StrictCluster(cluster_id="west-id") as target, own_worker_clients():
        target.broker_configs |= {"producer.id.expiration.ms": "86400000", "connections.max.idle.ms": "600000"}
        yield InlineRestores(folder, target)
