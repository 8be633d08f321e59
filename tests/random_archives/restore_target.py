"""Target of random restores: a cluster that refuses what brokers refuse, restores that end at any step, and what is there then."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.random_archives.cuts import Cut
from tests.random_archives.documented_reader import read_batches
from tests.random_archives.source_logs import LogRecord
from tests.support import restore_runs
from tests.support.inline_session import InlineSession
from tests.support.mirror_runs import CrashError

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.config import ArchiveConfig, RestoreConfig
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.sinks.kafka.targets import NO_LIMIT_MS, TIMESTAMP_LIMITS
from shallow_mirror.streaming.runs import Restore, restore as restore_run
from shallow_mirror.streaming.runs.preserved_restore import PreservedRestore

PATIENCE_S = 20.0
_TIMES = GuardTimes(expiration_ms=86_400_000, quiet_ms=900_000)


class CrashAfter:
    """Observer that ends a restore at its n-th step."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self.point = ""

    def __call__(self, point: str) -> None:
        self._left -= 1
        if self._left < 0:
            self.point = point
            raise CrashError(point)


class RestoreTarget:
    """The target cluster of one or many archives; context manager."""

    def __init__(self) -> None:
        self.cluster = StrictCluster(cluster_id="west-id")
        self._number = 0
        self._patch = pytest.MonkeyPatch()
        self._kept: dict[Any, Cluster] = {}

    def __enter__(self) -> RestoreTarget:
        self.cluster.__enter__()
        self._patch.setattr(PreservedRestore, "prepare", _prepare)
        self._patch.setattr(worker_clients, "_clusters", self._kept)
        self._patch.setattr(worker_clients, "freeze_imports_once", lambda: None)
        self._patch.setattr(restore_run, "refuse_ids_of_another", lambda *_: None)
        self._patch.setattr(restore_run, "_LEFT_OUT_PAUSE_S", 0.05)
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.undo()
        for cluster in self._kept.values():
            cluster.close()
        self.cluster.__exit__(*error)

    @contextmanager
    def topics(self, partitions: Mapping[str, int]) -> Iterator[str]:
        """Create target topics for one restore, and delete them at the end. Yield the prefix of their names."""
        self._number += 1
        prefix = f"restore{self._number}."
        settings: dict[str, Any] = {**dict.fromkeys(TIMESTAMP_LIMITS, str(NO_LIMIT_MS)), "retention.ms": "-1"}
        names = [prefix + topic for topic in partitions]
        for name, count in zip(names, partitions.values(), strict=True):
            self.cluster.create_topic(name, count, **settings)
        try:
            yield prefix
        finally:
            with self.cluster.lock:
                self.cluster.received.clear()
            for name in names:
                self.cluster.delete_topic(name)

    def config(
        self,
        folder: Path,
        archive: ArchiveConfig,
        prefix: str,
        cut: Cut,
        *,
        is_preserved: bool,
        micro_batch_bytes: int,
        **groups: Any,
    ) -> RestoreConfig:
        """Return the restore file of a cut. `groups`: other settings, merged one level deep."""
        topics: dict[str, Any] = {"include": list(cut.topics), "target_name": prefix + "{topic}"}
        if is_preserved:
            topics["offsets"] = {".*": "preserved"}
        settings: dict[str, Any] = {
            "restore": prefix + "back",
            "topics": topics,
            "until": cut.until(),
            "read": {"isolation_level": "read_committed" if cut.is_committed_only else "read_uncommitted"},
            "groups": {"commit": "off"},
            "tables": prefix + "tables",
        }
        for name, value in groups.items():
            settings[name] = {**settings.get(name, {}), **value} if isinstance(value, dict) else value
        config = restore_runs.config(folder, archive, self.cluster.bootstrap, **settings)
        return config.model_copy(update={"read": config.read.model_copy(update={"micro_batch_bytes": micro_batch_bytes})})

    def restore(self, config: RestoreConfig, crash: CrashAfter | None = None) -> bool:
        """Restore, up to a crash. Return whether it was complete before."""
        restore = Restore(config) if crash is None else Restore(config, observer=crash)
        limit = threading.Timer(PATIENCE_S, restore.stop)
        limit.start()
        try:
            restore.run(InlineSession())
        except CrashError:
            return False
        finally:
            limit.cancel()
            limit.join()
        return True

    def everything(self, prefix: str) -> dict[str, list[LogRecord]]:
        """Return what consumers can read now of every topic of a restore, by partition."""
        topic_partitions = [topic_partition for topic_partition in self.cluster.logs if topic_partition[0].startswith(prefix)]
        return {f"{topic}-{partition}": self.records(topic, partition, is_done=False) for topic, partition in topic_partitions}

    def log_bounds(self, topic: str, partition: int) -> tuple[int, int]:
        log = self.cluster.log(topic, partition)
        return log.log_start_offset, log.end_offset

    def records(self, topic: str, partition: int, *, is_done: bool = True) -> list[LogRecord]:
        """Return what a consumer of committed records reads from the begin of a log. `is_done`: no transaction may be open."""
        log = self.cluster.log(topic, partition)
        end = log.last_stable_offset
        assert not is_done or end == log.end_offset, f"{topic}-{partition} has an open transaction"
        found: list[LogRecord] = []
        for stored in log.batches:
            header = stored.header
            is_aborted = header.is_transactional and any(
                txn.producer_id == header.producer_id and txn.first_offset <= header.base_offset < txn.last_offset
                for txn in log.aborted
            )
            if header.is_control or is_aborted or header.base_offset >= end:
                continue
            for batch in read_batches(stored.data):
                found += [record for record in batch.records() if record.offset >= max(log.log_start_offset, header.base_offset)]
        return found


def _prepare(preserved: PreservedRestore, _deadline: object) -> None:
    preserved.guard_times = _TIMES
