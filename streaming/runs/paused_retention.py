"""Driver and commands: target topics of a restore whose retention is paused, by the settings that brokers have now."""

from __future__ import annotations

from collections.abc import Collection

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints.ledger import PausedTopic
from shallow_mirror.deadline import Deadline

LIFT = "`shallow-mirror restore FILE --lift-retention`"


def paused_topics(target: Cluster, recorded: Collection[PausedTopic], deadline: Deadline) -> list[str]:
    """Return the recorded target topics that exist and have a setting that pauses retention now. Raises RetriableError."""
    names = sorted({topic.target_topic for topic in recorded})
    existing = [name for name, topic in target.metadata(names, deadline).topics.items() if topic.error_code == 0] if names else []
    settings = target.topic_configs(sorted(existing), deadline) if existing else {}
    return sorted(
        topic.target_topic
        for topic in recorded
        if topic.target_topic in settings
        and any(settings[topic.target_topic].get(name) == value for name, value in topic.settings.items())
    )
