"""Pure: what mirrors say about themselves in their target clusters, and which topics would go round between two of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

from shallow_mirror import routing

GROUP_SUFFIX = "-origin"
"""Of the consumer group that holds what a mirror says: `<mirror>-origin`, beside the groups of its slots."""

ANY_TOPIC = (".*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a mirror brings topics from, and how it names them in the cluster that holds the registration."""

    mirror: str
    source_cluster_id: str
    source_alias: str
    target_name: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the note; None for what is no such note, or one that is damaged."""
        try:
            document = json.loads(text)
            origin = cls(
                mirror=str(document["mirror"]),
                source_cluster_id=str(document["source_cluster_id"]),
                source_alias=str(document["source_alias"]),
                target_name=str(document["target_name"]),
                include=tuple(str(pattern) for pattern in document["include"]),
                exclude=tuple(str(pattern) for pattern in document["exclude"]),
            )
            for pattern in (*origin.include, *origin.exclude):
                re.compile(pattern)
        except (ValueError, KeyError, TypeError, RecursionError, re.error):
            return None
        return origin if routing.template_problem(origin.target_name) is None else None

    def build(self, max_bytes: int) -> str:
        """Return the text of the note. Patterns that are too long for it become the pattern of all topics."""
        text = json.dumps(asdict(self))
        return text if len(text.encode()) <= max_bytes else json.dumps(asdict(replace(self, include=ANY_TOPIC, exclude=())))

    def takes(self, topic: str) -> bool:
        """Return whether the mirror copies a topic of its source cluster."""
        return routing.is_included(topic, self.include, self.exclude)

    def source_of(self, topic: str) -> str | None:
        """Return the source topic of `topic`, of the cluster that holds this note; None where the mirror did not write it."""
        match = re.fullmatch(routing.own_targets_pattern(self.target_name, self.source_alias), topic)
        return match["topic"] if match is not None and self.takes(match["topic"]) else None


def loop_problems(
    topics: Iterable[str], origins: Sequence[Origin], *, template: str, source_alias: str, target_cluster_id: str
) -> list[str]:
    """Return which topics of a mirror came from its own target and would be mirrored there again.

    `origins` are the notes of the mirrors that write to its source cluster.
    """
    problems = []
    back = [origin for origin in origins if origin.source_cluster_id == target_cluster_id]
    for topic in sorted(set(topics)) if back else ():
        target = routing.target_topic_name(template, source_alias, topic)
        for origin in back:
            before = origin.source_of(topic)
            if before is not None and origin.takes(target):
                problems.append(
                    f"source topic {topic} is a copy of {before} made by mirror {origin.mirror}: copying it back as {target} "
                    "would be a replication cycle. Give both mirrors topics.target_name: '{source}.{topic}' "
                    "and the same two aliases, or exclude the topic (topics.exclude)"
                )
    return problems
