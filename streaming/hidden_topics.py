"""Driver: topics that a mirror file names and brokers do not list: they hide what our user may not describe."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.error_codes import is_forbidden, refusal
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError

_log = logging.getLogger(__name__)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")


def hidden_topics(source: Cluster, include: Sequence[str], listed: Collection[str], deadline: Deadline) -> dict[str, str]:
    """What to grant, by topic that `include` names as it is and that exists or not: we may not know. Raises Retriable."""
    names = [one for one in include if _PLAIN_NAME.fullmatch(one) and one not in listed]
    found = source.metadata(names, deadline).topics if names else {}
    return {
        name: refusal(one.error_code, "Fetch", topic=name) for name, one in sorted(found.items()) if is_forbidden(one.error_code)
    }


def refuse_hidden_topics(source: Cluster, include: Sequence[str], listed: Collection[str], deadline: Deadline) -> None:
    """Raises ConfigError where there are any, and Retriable; warns where nothing matches at all."""
    hidden = hidden_topics(source, include, listed, deadline)
    if hidden:
        raise ConfigError([f"source topic {name}: {what}" for name, what in hidden.items()])
    if not listed:
        _log.warning(
            "no topic of the source matches %s yet; a topic that our user may not Describe is not shown (docs/security.md)",
            ", ".join(include),
        )
