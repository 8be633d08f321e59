"""Report of groups: the translation of each committed offset, and the action on the other cluster."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from shallow_mirror.types import SourcePartition, TopicPartition


class Outcome(enum.StrEnum):
    """Translation of a committed offset."""

    TRANSLATED = "translated"
    WAITS = "waits"
    PENDING = "pending"
    LOST = "lost"
    RECREATED = "created again"
    NOT_MIRRORED = "not mirrored"


class Step(enum.StrEnum):
    """Action on the other cluster."""

    IN_PLACE = "in place"
    TO_COMMIT = "to commit"
    COMMITTED = "committed"
    FURTHER = "further"
    ACTIVE = "active"
    REFUSED = "refused"
    NONE = "none"


_LEFT = frozenset({Outcome.WAITS, Outcome.PENDING, Outcome.LOST, Outcome.RECREATED})
_DONE = frozenset({Step.IN_PLACE, Step.COMMITTED, Step.FURTHER})


class GroupPartition(NamedTuple):
    """One committed offset of a group, the offset it leads to on the other cluster, and the state of the group there.

    `offset` None: not known before a transaction ends. `to_offset` None: it leads nowhere; of WAITS and LOST it is the best there
    is. `repeats`: records that would be read twice, None if that is unknown. `waits_for`: offsets that have to be mirrored
    first. `withheld`: records in quarantine that the group does not read there. `has`: the offset the group has there.
    """

    group: str
    topic_partition: TopicPartition
    offset: int | None
    metadata: str
    outcome: Outcome
    source: SourcePartition | None = None
    to_topic_partition: TopicPartition | None = None
    to_offset: int | None = None
    repeats: int | None = None
    waits_for: int | None = None
    withheld: int = 0
    has: int | None = None
    step: Step = Step.NONE
    reason: str | None = None

    def with_step(self, step: Step, has: int | None, reason: str | None) -> GroupPartition:
        """Return it with other values of its last three fields: `_replace` takes several times as long."""
        return GroupPartition._make((*self[:_HAS], has, step, reason))

    @property
    def is_left(self) -> bool:
        """Return whether it is of a mirrored topic, and not where it should be."""
        return self.outcome is not Outcome.NOT_MIRRORED and self.step not in _DONE

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "offset": self.offset,
            "topic_id": None if self.source is None else self.source.topic_id,
            "to_topic": None if self.to_topic_partition is None else self.to_topic_partition.topic,
            "to_partition": None if self.to_topic_partition is None else self.to_topic_partition.partition,
            **{name: getattr(self, name) for name in ("to_offset", "repeats", "waits_for", "withheld", "has", "reason")},
            "outcome": self.outcome.value,
            "step": self.step.value,
        }


_HAS = GroupPartition._fields.index("has")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`state` and `clients` are those of the group on the other cluster, Kafka's word and its members.

    `is_active_at_origin`: it has members there that read on, so that these offsets are soon those of the past.
    """

    name: str
    partitions: tuple[GroupPartition, ...]
    state: str
    clients: tuple[str, ...] = ()
    is_active_at_origin: bool = False

    def outcomes(self) -> Counter[str]:
        return Counter(partition.outcome.value for partition in self.partitions)

    def steps(self) -> Counter[str]:
        return Counter(partition.step.value for partition in self.partitions if partition.step is not Step.NONE)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """State of the target's groups while commits are followed."""

    age_s: float | None
    """Since the oldest commit that can be moved and is not at the target yet; 0: all are. None: they are not followed."""
    new_count: int = 0
    """Commits that were read from the source's log since the last time this was reported."""
    is_followed: bool | None = None
    """False: commits are polled, although `groups.follow` asks for more, and there are some. None: they need not be followed."""
    repeated_count: int | None = None
    """As `GroupSyncPass.repeated_count`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """`observed_at`: the pass that the positions are of; `next_at`: the first one after the requested time, None without one."""

    asked: datetime
    observed_at: datetime
    next_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """`origin` and `other` are the clusters' aliases: offsets of `origin` lead to `other`. `may_hide_groups`: `origin` leaves out
    groups that the mirror's user may not Describe."""

    mirror: str
    origin: str
    other: str
    groups: tuple[Group, ...]
    as_of: AsOf | None = None
    may_hide_groups: bool = False

    @property
    def partitions(self) -> Iterable[GroupPartition]:
        return (partition for group in self.groups for partition in group.partitions)

    @property
    def is_done(self) -> bool:
        """Return whether every group is where it should be, as far as its topics are mirrored; False if all may be hidden."""
        if not self.groups and self.may_hide_groups:
            return False
        return not any(partition.is_left for partition in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        as_of = None
        if self.as_of is not None:
            as_of = {name: None if at is None else at.isoformat() for name, at in asdict(self.as_of).items()}
        groups = [
            {
                "group": group.name,
                "state": group.state,
                "clients": list(group.clients),
                "is_active_at_origin": group.is_active_at_origin,
                "partitions": [partition.document() for partition in group.partitions],
            }
            for group in self.groups
        ]
        fields = {"mirror": self.mirror, "origin": self.origin, "other": self.other, "may_hide_groups": self.may_hide_groups}
        return {**fields, "as_of": as_of, "groups": groups}
