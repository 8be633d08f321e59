"""Driver: removal of whatever a rehearsal has created, also one that was killed.

All names on the clusters contain one prefix, and all files are in one folder; both are in the table of the migration before
anything is created.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from shallow_mirror.broker import Cluster, delete_groups
from shallow_mirror.broker.admin import delete_topics
from shallow_mirror.broker.admin.access import AclClient
from shallow_mirror.config import ClusterSettings
from shallow_mirror.config.migration_config import MigrationFiles
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.migration.conductor_ports import Owner
from shallow_mirror.migration.mirror_process import StartedMirror
from shallow_mirror.migration.rehearsal.scratch import REQUEST_S
from shallow_mirror.migration.state import REHEARSED

REMOVE_S = 60.0
_PROCESSES = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Places of a rehearsal. `is_denied`: also ACLs on its topics."""

    prefix: str
    folder: str
    is_denied: bool = False

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        return cls(**document)


def remove_all(files: MigrationFiles, rehearsals: Sequence[Mapping[str, Any]], owner: Owner) -> list[str]:
    """Remove leftovers of rehearsals, and record it. Return the rest, which the next call deletes."""
    left: list[str] = []
    for document in rehearsals:
        not_deleted = remove(files, Leftovers.of(document))
        if not not_deleted:
            owner.append(event=REHEARSED, detail=document)
        left += not_deleted
    return left


def remove(files: MigrationFiles, leftovers: Leftovers, clock: Callable[[], float] = time.monotonic) -> list[str]:
    """Stop the mirrors of a rehearsal, and delete its topics, groups, ACLs and files. Return those not deleted in time.

    Raises ConfigError if a permission is missing, RetriableError if a cluster does not answer.
    """
    for mirror in mirrors_of(leftovers.folder):
        mirror.stop()
    left: list[str] = []
    for cluster in (files.mirror.source, files.mirror.target):
        left += _remove_names(cluster, leftovers.prefix, Deadline.after_ms(REMOVE_S * 1000, clock))
        if leftovers.is_denied:
            left += _remove_acls(cluster, leftovers.prefix)
    shutil.rmtree(leftovers.folder, ignore_errors=True)
    return left


def mirrors_of(folder: str) -> Iterator[StartedMirror]:
    """Yield the processes of this machine that run a mirror file of `folder`.

    None if the system does not list processes in /proc: those of a killed rehearsal end by themselves then, in time.
    """
    for process in _PROCESSES.glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is another user's
            arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "run" in arguments and any(Path(argument).parent == Path(folder) for argument in arguments):
                yield StartedMirror(int(process.name), Path(os.devnull))


def _remove_names(cluster: ClusterSettings, prefix: str, deadline: Deadline) -> list[str]:
    with closing(Cluster(cluster.client)) as connection, closing(GroupClient(cluster.client, cluster.alias)) as groups:
        while True:
            # The mirror may have put something before it (topics.target_name).
            topics = [name for name in connection.metadata(None, deadline).topics if prefix in name]
            names = [name for name in groups.listed() if name.startswith(prefix)]
            if not topics and not names:
                return []
            if deadline.is_over():
                return [f"{cluster.alias}: topic {name}" for name in topics] + [
                    f"{cluster.alias}: group {name}" for name in names
                ]
            if topics:
                delete_topics(connection, topics, Deadline.after_ms(REQUEST_S * 1000, deadline.clock))
            try:
                delete_groups(connection, names, Deadline.after_ms(REQUEST_S * 1000, deadline.clock))
            except RetriableError:
                connection.wait(500, deadline)  # a member that was killed is in its group until its session ends
            connection.forget_metadata()


def _remove_acls(cluster: ClusterSettings, prefix: str) -> list[str]:
    client = AclClient(cluster.client, cluster.alias)
    if not client.has_authorizer():
        return []
    own = [acl for acl in client.read() if prefix in acl.pattern.name]
    refused = client.delete(own) if own else {}
    return [f"{cluster.alias}: {acl} ({reason})" for acl, reason in refused.items()]
