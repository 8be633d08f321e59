"""Driver: topics that a mirror file names, or that were mirrored, and brokers do not list: they hide what we may not describe."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.missing_topics import missing_topics
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError

_log = logging.getLogger(__name__)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")


def unauthorized_topics(
    source: Cluster, include: Sequence[str], mirrored: Collection[str], listed: Collection[str], deadline: Deadline
) -> Mapping[str, str]:
    """What to grant, by topic: of `mirrored`, and of names in `include` that match nothing. Whether those exist we may not know.

    Raises RetriableError.
    """
    shown = set(listed)
    unlisted = (one for one in include if one not in shown and _PLAIN_NAME.fullmatch(one))
    named = {one for one in unlisted if not any(re.fullmatch(one, name) for name in shown)}
    return missing_topics(source, sorted(named.union(mirrored) - shown), deadline).hidden


def require_authorized_topics(
    source: Cluster, include: Sequence[str], mirrored: Collection[str], listed: Collection[str], deadline: Deadline
) -> None:
    """Raises ConfigError where there are any, and RetriableError; warns where nothing matches at all."""
    hidden = unauthorized_topics(source, include, mirrored, listed, deadline)
    if hidden:
        raise ConfigError([f"source topic {name}: {what}" for name, what in hidden.items()])
    if not listed and not mirrored:
        _log.warning(
            "no topic of the source matches %s yet; a topic that our user may not Describe is not shown (docs/security.md)",
            ", ".join(include),
        )
