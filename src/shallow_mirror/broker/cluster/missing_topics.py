"""Everywhere: which topics a cluster does not have, and which our user may not describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.error_codes import UNKNOWN_TOPIC_OR_PARTITION, is_forbidden, refusal
from shallow_mirror.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Missing:
    """Topics that do not exist (`gone`), and what to grant by topic that our user may not describe (`hidden`)."""

    gone: tuple[str, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)


def missing_topics(cluster: Cluster, names: Sequence[str], deadline: Deadline) -> Missing:
    """Return which of `names` are missing. Raises RetriableError."""
    codes = {name: topic.error_code for name, topic in sorted(cluster.metadata(names, deadline).topics.items())} if names else {}
    return Missing(
        tuple(name for name, code in codes.items() if code == UNKNOWN_TOPIC_OR_PARTITION),
        {name: refusal(code, "Fetch", topic=name) for name, code in codes.items() if is_forbidden(code)},
    )
