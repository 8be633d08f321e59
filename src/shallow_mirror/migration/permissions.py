"""Driver: permissions that a later step needs and a user of the mirror files lacks, asked for without using them.

A cluster does not report the operations on a topic that its user may not describe: all of them are missing then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import (
    Operation,
    missing_delete_permissions,
    missing_describe_permissions,
    missing_group_permissions,
    missing_slot_permissions,
    request_permissions,
)
from shallow_mirror.deadline import request_deadline

TO_READ = (Operation.READ, Operation.DESCRIBE_CONFIGS)
"""A comparison reads both clusters and settings of their topics; commits of groups need Read of the topics as well."""
TO_WRITE = (*TO_READ, Operation.WRITE)
TO_REHEARSE = (*TO_WRITE, Operation.CREATE, Operation.DELETE)


@dataclass(frozen=True, slots=True)
class UserView:
    """A cluster as the user of one connection sees it. `name`: of the cluster and the user, in sentences."""

    cluster: Cluster
    name: str


def missing_on_topics(view: UserView, topics: Sequence[str], needed: Sequence[Operation], what_for: str) -> Iterator[str]:
    """Yield a sentence for each topic on which the user lacks some of `needed`. The topics need not exist."""
    permissions = request_permissions(view.cluster, topics, request_deadline()) if topics else None
    if permissions is None:
        return
    on_cluster = permissions.cluster or frozenset()
    for topic in topics:
        granted = permissions.topics.get(topic) or frozenset()
        missing = [
            operation
            for operation in needed
            if operation not in granted and not (operation is Operation.CREATE and operation in on_cluster)
        ]
        if missing:
            yield f"{view.name}: grant {', '.join(map(str, missing))} on topic {topic}: {what_for}"


def missing_on_groups(view: UserView, groups: Sequence[str], what_for: str) -> Iterator[str]:
    """Yield a sentence for each group whose offsets the user may not commit."""
    if groups:
        yield from _sentences(view, missing_group_permissions(view.cluster, groups, request_deadline()), what_for)


def missing_to_list(view: UserView, groups: Sequence[str], what_for: str) -> Iterator[str]:
    """Yield a sentence for each group that the cluster hides from the user."""
    if groups:
        yield from _sentences(view, missing_describe_permissions(view.cluster, groups, request_deadline()), what_for)


def missing_to_delete(view: UserView, absent_groups: Sequence[str], what_for: str) -> Iterator[str]:
    """Yield a sentence for each group that the user may not delete. There must be none of these names."""
    if absent_groups:
        yield from _sentences(view, missing_delete_permissions(view.cluster, absent_groups, request_deadline()), what_for)


def missing_in_transactions(view: UserView, transactional_id: str, what_for: str, *, with_receipts: bool = True) -> Iterator[str]:
    """Yield a sentence for each missing permission to write in transactions of this id."""
    missing = missing_slot_permissions(view.cluster, transactional_id, request_deadline(), with_receipts=with_receipts)
    yield from _sentences(view, missing, what_for)


def missing_to_change_acls(view: UserView, what_for: str) -> Iterator[str]:
    """Yield a sentence if the user may not create or delete ACLs."""
    granted = request_permissions(view.cluster, [], request_deadline()).cluster
    if granted is None or Operation.ALTER not in granted:
        yield f"{view.name}: grant Alter on the cluster: {what_for}"


def _sentences(view: UserView, problems: Sequence[str], what_for: str) -> Iterator[str]:
    for problem in problems:
        yield f"{view.name}: {problem}: {what_for}"
