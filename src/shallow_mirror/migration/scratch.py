"""Driver: everything that a rehearsal creates: topics, groups, mirrors and files of its own, and their removal.

All names on the clusters begin with one prefix, which is in the table of the migration before anything is created. So whatever a
killed rehearsal leaves is found by that prefix.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import yaml

from shallow_mirror.broker.admin.acl_client import AclClient
from shallow_mirror.broker.admin.acl_entries import Acl
from shallow_mirror.broker.admin.group_admin import delete_groups
from shallow_mirror.broker.admin.topic_admin import TopicSpec, delete_topics, ensure_topics
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.config import ClusterSettings, MirrorConfig
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles, WaveSettings
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.types import TopicPartition

REQUEST_S = 30.0
REMOVE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """`folder`: of the files and tables of the rehearsal. `topics`: the topics of the wave; `groups`: its groups."""

    prefix: str
    folder: Path
    topics: Sequence[str]
    groups: Sequence[str]

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def group(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def document(self) -> dict[str, str]:
        return {"prefix": self.prefix, "folder": str(self.folder)}


def write_files(files: MigrationFiles, wave: WaveSettings, scratch: Scratch) -> MigrationFiles:
    """Write mirror files and a migration file for the scratch topics, with the settings of the real ones."""
    scratch.folder.mkdir(parents=True, exist_ok=True)
    mirrors = {"mirror": files.mirror, "reverse": files.reverses.get(wave.name)}
    for name, mirror in mirrors.items():
        if mirror is not None:
            document = json.loads(_scratch_mirror(mirror, scratch, name).to_json())
            _path(scratch, name).write_text(yaml.safe_dump(document), encoding="utf-8")
    migration = {
        "migration": scratch.prefix,
        "mirror": str(_path(scratch, "mirror")),
        "waves": [
            {
                "name": wave.name,
                "topics": [re.escape(scratch.topic(topic)) for topic in scratch.topics],
                "groups": [re.escape(scratch.group(group)) for group in scratch.groups],
                "reverse": None if mirrors["reverse"] is None else str(_path(scratch, "reverse")),
            }
        ],
        "writers": json.loads(files.config.writers.model_dump_json()),
        "reverse": {"start": "conductor"},
        "tables": str(scratch.folder / "migration"),
    }
    return MigrationFiles(MigrationConfig.from_document(migration, folder=scratch.folder))


def mirror_file(scratch: Scratch) -> str:
    return str(_path(scratch, "mirror"))


def _path(scratch: Scratch, name: str) -> Path:
    return scratch.folder / f"{name}.yaml"


def _scratch_mirror(mirror: MirrorConfig, scratch: Scratch, name: str) -> MirrorConfig:
    topics = mirror.topics.model_copy(
        update={
            "include": [re.escape(scratch.topic(topic)) for topic in scratch.topics],
            "exclude": [],
            "start": {},
            "discovery": "1 second",
            "offsets": {},
        }
    )
    return mirror.model_copy(
        update={
            "mirror": f"{scratch.prefix}.{name}",
            "topics": topics,
            "read": mirror.read.model_copy(update={"start": "earliest"}),
            "groups": type(mirror.groups)(),
            "metrics": type(mirror.metrics)(),
            "tables": str(scratch.folder / name),
            "tables_writer": "deltalake",
            "storage": type(mirror.storage)(),
            "checkpoint": str(scratch.folder / name / "_spark"),
        }
    )


def create_topics(mirror: MirrorConfig, scratch: Scratch) -> dict[str, int]:
    """Create the scratch topics at the source, as the real ones are. Return the partitions of each. Raises ConfigError."""
    with closing(Cluster(mirror.source.client)) as cluster:
        deadline = _deadline()
        listed = cluster.metadata(list(scratch.topics), deadline).topics
        partitions = {scratch.topic(name): len(topic.partitions) for name, topic in listed.items()}
        specs = [TopicSpec(name, count, None, {}) for name, count in partitions.items()]
        ensure_topics(mirror.source.client, specs, timeout_s=REQUEST_S)
        while any(topic.error_code for topic in cluster.metadata(list(partitions), deadline).topics.values()):
            deadline.require("the scratch topics at the source")
            cluster.wait(100, deadline)
            cluster.forget_metadata()
    return partitions


def commit_groups(mirror: MirrorConfig, scratch: Scratch, ends: Mapping[TopicPartition, int]) -> None:
    """Commit offsets of the scratch groups at the source, in the middle of each log."""
    with closing(GroupClient(mirror.source.client, mirror.source_cluster_name)) as groups:
        for group in scratch.groups:
            refused = groups.commit(scratch.group(group), {name: (end // 2, "") for name, end in ends.items()})
            if refused:
                name, reason = min(refused.items())
                raise RetriableError("REFUSED", f"group {scratch.group(group)}, offset of {name}: {reason}")


def remove(files: MigrationFiles, prefix: str, folder: Path, clock: Callable[[], float] = time.monotonic) -> list[str]:
    """Delete all that begins with `prefix` on both clusters, and the folder. Return what could not be deleted in time."""
    left: list[str] = []
    for cluster in (files.mirror.source, files.mirror.target):
        left += _remove_at(cluster, prefix, Deadline.after_ms(REMOVE_S * 1000, clock))
    shutil.rmtree(folder, ignore_errors=True)
    return left


def _remove_at(cluster: ClusterSettings, prefix: str, deadline: Deadline) -> list[str]:
    with closing(Cluster(cluster.client)) as connection, closing(GroupClient(cluster.client, cluster.alias)) as groups:
        while True:
            topics = [name for name in connection.metadata(None, deadline).topics if name.startswith(prefix)]
            names = [name for name in groups.listed() if name.startswith(prefix)]
            if not topics and not names:
                return []
            if deadline.is_over():
                return [f"{cluster.alias}: topic {name}" for name in topics] + [
                    f"{cluster.alias}: group {name}" for name in names
                ]
            if topics:
                delete_topics(cluster.client, topics, timeout_s=REQUEST_S)
            try:
                delete_groups(cluster.client, names, timeout_s=REQUEST_S)
            except RetriableError:
                connection.wait(500, deadline)  # a member that was killed is in its group until its session ends
            connection.forget_metadata()


def remove_denies(files: MigrationFiles, prefix: str) -> None:
    """Delete the ACLs on scratch topics of both clusters."""
    for cluster in (files.mirror.source, files.mirror.target):
        client = AclClient(cluster.client, cluster.alias)
        own: list[Acl] = [acl for acl in client.read() if acl.pattern.name.startswith(prefix)]
        if own:
            client.delete(own)


def _deadline() -> Deadline:
    return Deadline.after_ms(REQUEST_S * 1000, time.monotonic)
