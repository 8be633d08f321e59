"""Driver: topics that a mirror file names, or that were mirrored, and brokers do not list, for want of DESCRIBE permission."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence

from shallow_mirror import routing
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.missing_topics import missing_topics
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError

_log = logging.getLogger(__name__)


def unauthorized_topics(
    source: Cluster, include: Sequence[str], mirrored: Collection[str], listed: Collection[str], deadline: Deadline
) -> Mapping[str, str]:
    """Return what to grant, by topic: of `mirrored`, and of plain names in `include` that match nothing. Raise RetriableError.

    A broker does not say whether a topic exists that our user may not describe.
    """
    listed = set(listed)
    unlisted = (pattern for pattern in include if pattern not in listed and routing.is_plain_name(pattern))
    named = {pattern for pattern in unlisted if not any(re.fullmatch(pattern, name) for name in listed)}
    return missing_topics(source, sorted(named.union(mirrored) - listed), deadline).hidden


def require_authorized_topics(
    source: Cluster, include: Sequence[str], mirrored: Collection[str], listed: Collection[str], deadline: Deadline
) -> None:
    """Raise ConfigError where there are any, and RetriableError; warn where nothing matches at all."""
    unauthorized = unauthorized_topics(source, include, mirrored, listed, deadline)
    if unauthorized:
        raise ConfigError([f"source topic {name}: {grant}" for name, grant in unauthorized.items()])
    if not listed and not mirrored:
        _log.warning("%s", nothing_matches(include))


def nothing_matches(include: Sequence[str]) -> str:
    return (
        f"no topic of the source matches {', '.join(include)} (topics.include), so nothing is copied before one does; a topic "
        "that the client's user may not describe is not listed: grant Read on it (docs/reference/acls.md)"
    )
