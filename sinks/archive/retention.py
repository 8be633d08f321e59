"""Pure: which objects of an archive have expired: whole objects only, the oldest of every partition first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from shallow_mirror import routing
from shallow_mirror.types import SourcePartition


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Of the topics that match `pattern`. `keep_bytes`: of a topic, over all its partitions. None: without that limit."""

    pattern: str
    keep_ms: int | None = None
    keep_bytes: int | None = None


class RetainedRow(NamedTuple):
    """A visible row that names an object."""

    object_name: str
    source: SourcePartition
    size_bytes: int
    micro_batch: int
    decided_at_ms: int


@dataclass(frozen=True, slots=True)
class ExpiredObject:
    name: str
    micro_batch: int
    size_bytes: int
    row_count: int


class Retention:
    """The rules of an archive file. The first pattern that matches a topic counts; without one it is kept for ever."""

    def __init__(self, rules: Sequence[RetentionRule]) -> None:
        self._rules = tuple(rules)
        self._of_topic: dict[str, RetentionRule | None] = {}

    @property
    def limits_bytes(self) -> bool:
        return any(rule.keep_bytes is not None for rule in self._rules)

    @property
    def expires_anything(self) -> bool:
        return any(rule.keep_ms is not None or rule.keep_bytes is not None for rule in self._rules)

    def latest_expired_ms(self, now_ms: int) -> int | None:
        """Return when rows that have expired by their age were decided at the latest; None if none can have."""
        return max((now_ms - rule.keep_ms for rule in self._rules if rule.keep_ms is not None), default=None)

    def expired(
        self,
        rows: Iterable[RetainedRow],
        topic_bytes: Mapping[str, int],
        now_ms: int,
        deleted: Set[tuple[str, str]] = frozenset(),
    ) -> Iterator[ExpiredObject]:
        """Yield the expired objects. `rows`: by `micro_batch`, rising. `topic_bytes`: of all visible rows of each topic.

        A row has expired when it was decided longer ago than `keep`, when newer rows of its topic have `keep_bytes`, or when its
        topic is one of `deleted` (name and id), of which nothing is kept any more. An object has when all its rows have, and when
        no older object of one of its partitions is kept: the rest of a partition is always its end.
        """
        behind = dict(topic_bytes)  # of each topic: bytes that are newer than the rows so far
        kept = set[SourcePartition]()
        for _, of_decision in groupby(rows, key=lambda row: row.micro_batch):
            objects: dict[str, list[RetainedRow]] = {}
            for row in of_decision:
                objects.setdefault(row.object_name, []).append(row)
            for name, of_object in objects.items():
                has_expired = True
                for row in of_object:
                    behind[row.source.topic] = behind.get(row.source.topic, 0) - row.size_bytes
                    has_expired &= row.source not in kept and (
                        row.source[:2] in deleted or self._has_expired(row, behind[row.source.topic], now_ms)
                    )
                if has_expired:
                    size_bytes = sum(row.size_bytes for row in of_object)
                    yield ExpiredObject(name, of_object[0].micro_batch, size_bytes, len(of_object))
                else:
                    kept.update(row.source for row in of_object)

    def _has_expired(self, row: RetainedRow, newer_bytes: int, now_ms: int) -> bool:
        rule = self._rule_of(row.source.topic)
        if rule is None:
            return False
        is_too_old = rule.keep_ms is not None and row.decided_at_ms <= now_ms - rule.keep_ms
        return is_too_old or (rule.keep_bytes is not None and newer_bytes >= rule.keep_bytes)

    def _rule_of(self, topic: str) -> RetentionRule | None:
        if topic not in self._of_topic:
            self._of_topic[topic] = routing.first_match(topic, ((rule.pattern, rule) for rule in self._rules))
        return self._of_topic[topic]
