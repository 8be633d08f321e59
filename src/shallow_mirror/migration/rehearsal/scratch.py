"""Driver: everything that a rehearsal creates: topics, groups, mirrors and files of its own. `leftovers` removes it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec, ensure_topics
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles, WaveSettings
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.sinks.kafka.targets import COPIED
from shallow_mirror.types import TopicPartition

REQUEST_S = 30.0
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """`folder`: of the files and tables of the rehearsal. `topics`: the topics of the wave; `groups`: its groups.

    `target_name` and `source_alias`: those of the mirror, which name the copies.
    """

    prefix: str
    folder: Path
    topics: Sequence[str]
    groups: Sequence[str]
    target_name: str
    source_alias: str

    def topic(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def copy(self, name: str) -> str:
        """Return the target topic of the scratch topic."""
        return routing.target_topic_name(self.target_name, self.source_alias, self.topic(name))

    def name_problems(self) -> list[str]:
        """Return why a cluster would refuse the names, which are longer than the real ones."""
        return [
            problem
            for name in self.topics
            for problem in routing.name_problems(name, max(self.topic(name), self.copy(name), key=len))
        ]

    def group(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def mirror_id(self, name: str) -> str:
        """Return the id of a mirror of the rehearsal: `mirror` or `reverse`."""
        return f"{self.prefix}.{name}"


def write_files(files: MigrationFiles, wave: WaveSettings, scratch: Scratch) -> MigrationFiles:
    """Write mirror files and a migration file for the scratch topics, with the settings of the real ones."""
    scratch.folder.mkdir(mode=0o700)
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
    """Return the settings of a real mirror for scratch names.

    Left out is what would reach beyond them (ACLs, quotas, schemas, heartbeats, the port of the metrics), and where the real one
    begins.
    """
    topics = mirror.topics.model_copy(
        update={
            "include": [re.escape(scratch.topic(topic)) for topic in scratch.topics],
            "exclude": [],
            "start": {},
            "discovery": "1 second",
            "offsets": _by_scratch_topic(scratch, mirror.topics.offsets),
            "bytes_per_second": _by_scratch_topic(scratch, mirror.topics.bytes_per_second),
        }
    )
    groups = {"include": [re.escape(scratch.prefix) + r"\..*"], "exclude": []}
    return mirror.model_copy(
        update={
            "mirror": scratch.mirror_id(name),
            "topics": topics,
            "read": mirror.read.model_copy(update={"start": "earliest"}),
            "groups": mirror.groups.model_copy(update=groups),
            "acls": type(mirror.acls)(),
            "quotas": type(mirror.quotas)(),
            "schemas": type(mirror.schemas)(),
            "heartbeats": type(mirror.heartbeats)(),
            "metrics": type(mirror.metrics)(),
            "tables": str(scratch.folder / name),
            "tables_writer": "deltalake",
            "storage": type(mirror.storage)(),
            "checkpoint": str(scratch.folder / name / "_spark"),
        }
    )


def _by_scratch_topic(scratch: Scratch, rules: Mapping[str, V]) -> dict[str, V]:
    """Return the value of each scratch topic: that of its real topic."""
    values = {topic: routing.first_match(topic, rules.items()) for topic in scratch.topics}
    return {re.escape(scratch.topic(topic)): value for topic, value in values.items() if value is not None}


def create_topics(mirror: MirrorConfig, scratch: Scratch) -> None:
    """Create the scratch topics at the source, with the partitions of the real ones, and the settings that a mirror copies.

    Raises ConfigError.
    """
    with closing(Cluster(mirror.source.client)) as cluster:
        deadline = Deadline.after_ms(REQUEST_S * 1000, time.monotonic)
        listed = cluster.metadata(list(scratch.topics), deadline).topics
        settings = cluster.topic_configs(list(scratch.topics), deadline, keys=COPIED)
        specs = [TopicSpec(scratch.topic(name), len(topic.partitions), None, settings[name]) for name, topic in listed.items()]
        ensure_topics(cluster, specs, deadline)
        names = [spec.name for spec in specs]
        while any(topic.error_code for topic in cluster.metadata(names, deadline).topics.values()):
            deadline.require("the scratch topics at the source")
            cluster.wait(100, deadline)
            cluster.forget_metadata()


def commit_groups(mirror: MirrorConfig, scratch: Scratch, ends: Mapping[TopicPartition, int]) -> None:
    """Commit offsets of the scratch groups at the source, in the middle of each log."""
    with closing(GroupClient(mirror.source.client, mirror.source_cluster_name)) as groups:
        for group in scratch.groups:
            refused = groups.commit(scratch.group(group), {name: (end // 2, "") for name, end in ends.items()})
            if refused:
                name, reason = min(refused.items())
                raise RetriableError("REFUSED", f"group {scratch.group(group)}, offset of {name}: {reason}")
