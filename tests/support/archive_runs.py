"""Archives that run inside the test process, and what tests read of them without the project's own readers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.support.mirror_runs import set_micro_batches

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.streaming.runs import Archive
from shallow_mirror.types import IsolationLevel, TopicPartition

DEADLINE_MS = 60_000.0


def document(source: str, include: Sequence[str], /, **groups: Any) -> dict[str, Any]:
    """Return an archive file. `groups` are merged into it, one level deep."""
    made: dict[str, Any] = {
        "archive": f"a-{uuid.uuid5(uuid.NAMESPACE_URL, str(list(include)))}",
        "source": {"alias": "east", "client": {"bootstrap.servers": source}},
        "topics": {"include": list(include), "discovery": "0 seconds"},
        "objects": "objects",
        "tables": "tables",
        "trigger": "0 seconds",
    }
    set_micro_batches(made)
    for name, value in groups.items():
        made[name] = made.get(name, {}) | value if isinstance(value, dict) else value
    return made


def config(folder: Path, source: str, include: Sequence[str], /, **groups: Any) -> ArchiveConfig:
    return ArchiveConfig.from_document(document(source, include, **groups), folder=folder)


def archive_all(settings: ArchiveConfig, spark: Any, observer: Observer = observe_nothing) -> None:
    """Archive what the source has now."""
    Archive(settings, observer=observer).run(spark, available_now=True)


def rows(settings: ArchiveConfig) -> list[dict[str, Any]]:
    """Return the rows of the archive in the order of partitions and offsets."""
    table = DeltaTable(f"{settings.tables}/archive_segments").to_pyarrow_table().to_pylist()
    return sorted(table, key=lambda row: (row["source_topic"], row["source_partition"], row["source_start"], row["source_end"]))


def archived_bytes(settings: ArchiveConfig) -> dict[TopicPartition, bytes]:
    """Return the batches of each partition as rows and files of a folder have them."""
    batches: dict[TopicPartition, bytes] = {}
    for row in rows(settings):
        partition = TopicPartition(row["source_topic"], row["source_partition"])
        batches.setdefault(partition, b"")
        if row["kind"] == "data":
            content = (Path(settings.objects) / row["object_name"]).read_bytes()
            batches[partition] += b"".join(
                content[entry["position"] : entry["position"] + entry["size_bytes"]] for entry in row["index"]
            )
    return batches


def source_bytes(bootstrap: str, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, bytes]:
    """Return the batches of each partition as its broker stores them, from offset 0 to the end."""
    cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}))
    try:
        ranges = [ReadRange(partition, 0, end, 100.0) for partition, end in ends.items() if end > 0]
        reader = RangeReader(
            cluster,
            ranges,
            isolation=IsolationLevel.READ_UNCOMMITTED,
            fetch_bytes=1 << 20,
            deadline=Deadline.after_ms(DEADLINE_MS, time.monotonic),
        )
        batches = dict.fromkeys(ends, b"")
        for response in reader:
            for fetched in response:
                size = int(fetched.index.size_bytes.sum())
                batches[fetched.topic_partition] += bytes(fetched.records[:size])
        return batches
    finally:
        cluster.close()


def covered(settings: ArchiveConfig) -> dict[TopicPartition, int]:
    """Return up to where each partition is covered, from offset 0 and without a hole or overlap."""
    ends: dict[TopicPartition, int] = {}
    for row in rows(settings):
        partition = TopicPartition(row["source_topic"], row["source_partition"])
        assert row["source_start"] == ends.get(partition, 0), row
        ends[partition] = row["source_end"]
    return ends
