"""Driver: permissions that a mirror needs and does not have, reported before Spark is started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import Operation, Permissions, missing_slot_permissions, request_permissions
from shallow_mirror.broker.cluster import missing_topics
from shallow_mirror.broker.net import TOPIC_AUTHORIZATION_FAILED, refusal
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.sections import SourceTopicSettings
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.group_client import GROUP_LOG
from shallow_mirror.sinks.kafka import transactional_id

_log = logging.getLogger(__name__)

ON_SOURCE_TOPICS = {Operation.READ: "Fetch"}
ON_TARGET_TOPICS = {Operation.WRITE: "Produce", Operation.READ: "TxnOffsetCommit"}
"""What every micro-batch needs: by operation, the request that would be rejected without it."""
TO_CREATE = {Operation.CREATE: "CreateTopics", Operation.DESCRIBE_CONFIGS: "DescribeConfigs"}
TO_ADD_PARTITIONS = {Operation.ALTER: "CreatePartitions"}


def unauthorized_topics(
    source: Cluster,
    include: Sequence[str],
    mirrored: Collection[str],
    listed: Collection[str],
    deadline: Deadline,
    *,
    exclude: Sequence[str] = (),
) -> Mapping[str, str]:
    """Return missing permissions by topic: of `mirrored`, and of plain names in `include` that match nothing and are not
    excluded. Raises RetriableError.

    A broker does not say whether a topic exists that our user may not describe.
    """
    listed = set(listed)
    unmatched = routing.unmatched_entries(include, exclude, listed)
    named = {entry for entry in unmatched if routing.is_plain_name(entry)}
    return missing_topics(source, sorted(named.union(mirrored) - listed), deadline).hidden


def require_authorized_topics(
    source: Cluster,
    topics: SourceTopicSettings,
    mirrored: Collection[str],
    listed: Collection[str],
    deadline: Deadline,
    *,
    waits_for_topics: bool,
) -> None:
    """Raise ConfigError if there are any, and RetriableError.

    If nothing matches at all, warn if the run waits for topics; else raise ConfigError: it would end without a copy.
    """
    unauthorized = unauthorized_topics(source, topics.include, mirrored, listed, deadline, exclude=topics.exclude)
    if unauthorized:
        raise ConfigError([f"source topic {name}: {grant}" for name, grant in unauthorized.items()])
    if not listed and not mirrored:
        if not waits_for_topics:
            raise ConfigError(nothing_matches(topics.include))
        _log.warning("%s", nothing_matches(topics.include))


def nothing_matches(include: Sequence[str]) -> str:
    return (
        f"no topic of the source matches {', '.join(include)} (topics.include), so nothing is copied before one does; a topic "
        "that the client's user may not describe is not listed: grant Read on it"
    )


def require_acls(
    config: MirrorConfig,
    source: Cluster,
    target: Cluster,
    deadline: Deadline,
    handed_over: Callable[[], Collection[str]] = tuple,
) -> None:
    """Raise ConfigError with all missing permissions that every micro-batch needs, as far as clusters report them.

    `handed_over`: returns the source topics of which nothing is copied, because a migration has moved their writers to the
    target; called only if permissions are missing. Raises as it, and RetriableError if a cluster does not answer.
    """
    listed = source.metadata(None, deadline).topics
    topics = sorted(name for name, topic in listed.items() if topic.error_code == 0 and config.topics.is_included(name))
    unauthorized = unauthorized_topics(source, config.topics.include, (), topics, deadline, exclude=config.topics.exclude)
    targets = {name: routing.target_topic_name(config.topics.target_name, config.source.alias, name) for name in topics}
    of_source, of_target = (
        request_permissions(cluster, names, deadline) if names else Permissions(None, {})
        for cluster, names in ((source, topics), (target, sorted(targets.values())))
    )
    on_source = {name: [*missing_on_topic(of_source, name, ON_SOURCE_TOPICS)] for name in topics}
    on_target = {name: [*missing_on_topic(of_target, target, ON_TARGET_TOPICS)] for name, target in targets.items()}
    if any((*on_source.values(), *on_target.values())):
        moved = set(handed_over())
        on_source, on_target = (
            {name: missing[name] for name in topics if name not in moved} for missing in (on_source, on_target)
        )
    requires_group_log = config.groups.is_followed and config.groups.follow == "required"
    group_log = request_permissions(source, [GROUP_LOG], deadline) if requires_group_log else Permissions(None, {})
    of_slots = missing_slot_permissions(target, transactional_id(config.mirror, 0), deadline)
    problems = [
        *(f"source topic {name}: {grant}" for name, grant in unauthorized.items()),
        *(f"source topic {name}: {grant}" for name, grants in on_source.items() for grant in grants),
        *(
            f"groups.follow is required: source topic {GROUP_LOG}: {grant}"
            for grant in missing_on_topic(group_log, GROUP_LOG, ON_SOURCE_TOPICS)
        ),
        *(f"target topic {targets[name]}: {grant}" for name, grants in on_target.items() for grant in grants),
        *(f"{config.target_cluster_name}: {problem}" for problem in of_slots),
    ]
    if problems:
        raise ConfigError(problems)


def missing_on_topic(permissions: Permissions, topic: str, needed: Mapping[Operation, str]) -> Iterator[str]:
    """Yield the permissions to grant on a topic, existing or not. `needed`: by operation, the request that would be rejected.

    A topic may also be created with a permission on the cluster.
    """
    may_create_any: Sequence[Operation] = [Operation.CREATE] if Operation.CREATE in (permissions.cluster or ()) else []
    for operation in permissions.missing_on(topic, needed):
        if operation not in may_create_any:
            yield refusal(TOPIC_AUTHORIZATION_FAILED, needed[operation], topic=topic)
