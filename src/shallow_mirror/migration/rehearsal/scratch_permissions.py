"""Driver: permissions that a rehearsal needs on its scratch topics and groups, asked for before any of them is created."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin.access import AclClient
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.migration.permissions import (
    TO_READ,
    TO_REHEARSE,
    TO_WRITE,
    UserView,
    missing_in_transactions,
    missing_on_groups,
    missing_on_topics,
    missing_to_change_acls,
    missing_to_delete,
)
from shallow_mirror.migration.rehearsal.scratch import Scratch
from shallow_mirror.sinks.kafka import transactional_id

_WHAT_FOR = "needed for a rehearsal"


def missing_permissions(files: MigrationFiles, wave: WaveSettings, scratch: Scratch) -> Iterator[str]:
    """Yield a sentence for each missing permission. Raises RetriableError, ConfigError."""
    yield from _of_move(files.mirror, scratch)
    reverse = files.reverses.get(wave.name)
    if reverse is not None:
        yield from _of_way_back(reverse, scratch)
        if files.config.writers.is_denied:
            yield from _of_denies(files.mirror, reverse)


def _of_move(mirror: MirrorConfig, scratch: Scratch) -> Iterator[str]:
    groups = [scratch.group(group) for group in scratch.groups]
    with closing(Cluster(mirror.source.client)) as source, closing(Cluster(mirror.target.client)) as target:
        views = (UserView(source, mirror.source_cluster_name), UserView(target, mirror.target_cluster_name))
        for view, topics in zip(views, (_topics(scratch), _copies(scratch)), strict=True):
            yield from missing_on_topics(view, topics, TO_REHEARSE, _WHAT_FOR)
            yield from missing_on_groups(view, groups, _WHAT_FOR)
            yield from missing_to_delete(view, [scratch.prefix, *groups], _WHAT_FOR)
        yield from missing_in_transactions(views[1], transactional_id(scratch.mirror_id("mirror"), 0), _WHAT_FOR)


def _of_way_back(reverse: MirrorConfig, scratch: Scratch) -> Iterator[str]:
    with closing(Cluster(reverse.source.client)) as source, closing(Cluster(reverse.target.client)) as target:
        yield from missing_on_topics(UserView(source, reverse.source_cluster_name), _copies(scratch), TO_READ, _WHAT_FOR)
        view = UserView(target, reverse.target_cluster_name)
        yield from missing_on_topics(view, _topics(scratch), TO_WRITE, _WHAT_FOR)
        yield from missing_in_transactions(view, transactional_id(scratch.mirror_id("reverse"), 0), _WHAT_FOR)


def _of_denies(mirror: MirrorConfig, reverse: MirrorConfig) -> Iterator[str]:
    """Yield missing permissions of a rollback to deny the writers at the other cluster, and to admit them at the former one."""
    if not AclClient(reverse.source.client, reverse.source_cluster_name).has_authorizer():
        yield f"{reverse.source_cluster_name} has no authorizer: a rehearsal rolls back as well, which denies the writers there"
        return
    for name, client in (
        (reverse.source_cluster_name, reverse.source.client),
        (reverse.target_cluster_name, reverse.target.client),
        (mirror.target_cluster_name, mirror.target.client),  # deletes what is left
    ):
        with closing(Cluster(client)) as cluster:
            yield from missing_to_change_acls(UserView(cluster, name), _WHAT_FOR)


def _topics(scratch: Scratch) -> list[str]:
    return [scratch.topic(topic) for topic in scratch.topics]


def _copies(scratch: Scratch) -> list[str]:
    return [scratch.copy(topic) for topic in scratch.topics]
