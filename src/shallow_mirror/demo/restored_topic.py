"""Driver: the second part of the demo: a topic is archived, its copy is deleted, and it is restored up to a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import yaml
from confluent_kafka.admin import AdminClient

from shallow_mirror.demo import checker
from shallow_mirror.demo.history import History
from shallow_mirror.types import IsolationLevel, TopicPartition

TOPIC = "orders.audit"
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopic:
    """The restored topic. `problems`: partitions that differ from those that a read_committed consumer had seen up to the cut."""

    topic: str
    cut: datetime
    object_count: int
    archived_bytes: int
    record_count: int
    problems: tuple[str, ...]


def archive_file(source_bootstrap: str, folder: Path) -> str:
    """Return the YAML of the demo's archive. Pure."""
    settings = {
        "archive": "shallow-mirror-demo-archive",
        "source": {"alias": "east", "client": {"bootstrap.servers": source_bootstrap}},
        "topics": {"include": [TOPIC.replace(".", "\\.")]},
        "objects": str(folder / "objects"),
        "tables": str(folder / "archive-tables"),
    }
    return yaml.safe_dump(settings, sort_keys=False)


def restore_file(target_bootstrap: str, folder: Path, cut: datetime) -> str:
    """Return the YAML of the demo's restore. Pure."""
    settings = {
        "restore": "shallow-mirror-demo-restore",
        "archive": {"tables": str(folder / "archive-tables"), "objects": str(folder / "objects"), "alias": "east"},
        "target": {"alias": "west", "client": {"bootstrap.servers": target_bootstrap}},
        "until": {"time": cut.isoformat()},
        "tables": str(folder / "restore-tables"),
    }
    return yaml.safe_dump(settings, sort_keys=False)


def delete_copy(target_bootstrap: str) -> None:
    """Delete the topic at the target, and return when it is gone. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": target_bootstrap, "log_level": 3})
    admin.delete_topics([TOPIC], operation_timeout=_TIMEOUT_S)[TOPIC].result()


def middle_time(source_bootstrap: str) -> datetime:
    """Return the time of a record in the middle of the topic's first partition. Raises RetriableError."""
    times = checker.read_times(source_bootstrap, TOPIC)
    first = times[min(times)]
    return datetime.fromtimestamp(first[len(first) // 2][1] / 1000, UTC)


def compare(
    source_bootstrap: str, target_bootstrap: str, folder: Path, cut: datetime, on_progress: Callable[[int], None]
) -> RestoredTopic:
    """Compare the restored topic with the records of a read_committed consumer of the source up to the cut.

    The cut of a partition is in front of the first record, of committed and aborted ones, that is newer than the time.
    """
    cut_ms = round(cut.timestamp() * 1000)
    ends = {
        partition: next((offset for offset, time_ms in records if time_ms > cut_ms), records[-1][0] + 1 if records else 0)
        for partition, records in checker.read_times(source_bootstrap, TOPIC).items()
    }
    committed = IsolationLevel.READ_COMMITTED
    expected = {
        partition: _up_to(history, ends[partition])
        for partition, history in checker.read_histories(source_bootstrap, [TOPIC], committed, on_progress).items()
    }
    restored = checker.read_histories(target_bootstrap, [TOPIC], committed, on_progress)
    objects = list((folder / "objects").rglob("*.batches"))
    return RestoredTopic(
        topic=TOPIC,
        cut=cut,
        object_count=len(objects),
        archived_bytes=sum(path.stat().st_size for path in objects),
        record_count=sum(len(history.offsets) for history in restored.values()),
        problems=tuple(problems_of(expected, restored)),
    )


def _up_to(history: History, end: int) -> History:
    count = int(np.searchsorted(history.offsets, end))
    return History(history.offsets[:count], history.digests[:count])


def problems_of(expected: Mapping[TopicPartition, History], restored: Mapping[TopicPartition, History]) -> list[str]:
    """Return a sentence for each partition whose records differ, or that no record was expected of at all. Pure."""
    problems = [
        f"{partition}: {len(history.offsets)} records up to the cut, "
        f"{len(restored[partition].offsets) if partition in restored else 0} restored, or they differ"
        for partition, history in sorted(expected.items())
        if partition not in restored or not np.array_equal(history.digests, restored[partition].digests)
    ]
    problems += [f"{partition}: is not in the archive" for partition in sorted(restored.keys() - expected.keys())]
    if not any(len(history.offsets) for history in expected.values()):
        problems.append("no record lies before the cut: this restore proves nothing")
    return problems
