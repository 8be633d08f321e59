"""Driver: topics that are gone and that the operator has closed with `forget`, by topic id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from shallow_mirror.checkpoints.logs.topics.deleted_topics import TopicIncarnation
from shallow_mirror.types import SourcePartition

_T = TypeVar("_T")

_NAMED = re.compile(r"\(for ([\w.-]+)\)|source topic ([\w.-]+)")
"""How problems of topics that are gone name the source topic: older releases have recorded the sentence only."""


@dataclass(frozen=True, slots=True)
class ForgottenTopics:
    """`at_ms`: when each source topic was forgotten. Another topic of the same name is not forgotten."""

    at_ms: Mapping[TopicIncarnation, int] = field(default_factory=dict)

    @property
    def topic_ids(self) -> frozenset[str]:
        return frozenset(topic.topic_id for topic in self.at_ms)

    def has(self, source: SourcePartition) -> bool:
        return TopicIncarnation(source.topic, source.topic_id) in self.at_ms

    def without(self, by_source: Mapping[SourcePartition, _T]) -> dict[SourcePartition, _T]:
        """Return the entries of topics that are not forgotten."""
        if not self.at_ms:
            return dict(by_source)
        return {source: value for source, value in by_source.items() if not self.has(source)}

    def names(self, mirrored: Iterable[SourcePartition]) -> dict[str, int]:
        """Return the names of which every mirrored topic is forgotten, and when the last one was, in ms."""
        others = {source.topic for source in mirrored if not self.has(source)}
        newest: dict[str, int] = {}
        for topic, at_ms in self.at_ms.items():
            if topic.topic not in others:
                newest[topic.topic] = max(at_ms, newest.get(topic.topic, at_ms))
        return newest


def is_closed(text: str, at_ms: int, names: Mapping[str, int], topic: str | None) -> bool:
    """Return whether a problem concerns forgotten topics only, and is not newer than that.

    `names`: as `ForgottenTopics.names` returns them. `topic`: the source topic of the problem; None if it was not recorded, or
    is not one: then those that the sentence names.
    """
    concerned = {topic} if topic is not None else {one or other for one, other in _NAMED.findall(text)}
    return bool(concerned) and all(at_ms <= names.get(name, -1) for name in concerned)


NOTHING_FORGOTTEN = ForgottenTopics()
