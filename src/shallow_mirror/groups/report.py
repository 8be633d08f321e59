"""What a look at the groups says."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from shallow_mirror.types import SourcePartition, TopicPartition


class Outcome(enum.StrEnum):
    """What the map says of a committed offset."""

    TRANSLATED = "translated"
    WAITS = "waits"
    PENDING = "pending"
    LOST = "lost"
    CREATED_AGAIN = "created again"
    NOT_MIRRORED = "not mirrored"


class Step(enum.StrEnum):
    """What becomes of it on the other cluster."""

    IN_PLACE = "in place"
    TO_COMMIT = "to commit"
    COMMITTED = "committed"
    FURTHER = "further"
    ACTIVE = "active"
    REFUSED = "refused"
    NONE = "none"


_LEFT = frozenset({Outcome.WAITS, Outcome.PENDING, Outcome.LOST, Outcome.CREATED_AGAIN})
_DONE = frozenset({Step.IN_PLACE, Step.COMMITTED, Step.FURTHER})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """One committed offset of a group, the place it leads to on the other cluster, and what is there.

    `offset` None: not known before a transaction ends. `to_offset` None: it leads nowhere; of WAITS and LOST it is the best there
    is. `repeats`: records that would be read twice, None where nobody can know. `waits_for`: offsets that have to be mirrored
    first. `withheld`: records in quarantine that the group does not meet there. `has`: the offset the group has there.
    """

    group: str
    place: TopicPartition
    offset: int | None
    metadata: str
    outcome: Outcome
    source: SourcePartition | None = None
    to_place: TopicPartition | None = None
    to_offset: int | None = None
    repeats: int | None = None
    waits_for: int | None = None
    withheld: int = 0
    has: int | None = None
    step: Step = Step.NONE
    reason: str | None = None

    @property
    def is_left(self) -> bool:
        """Of a mirrored topic, and not where it should be."""
        return self.outcome is not Outcome.NOT_MIRRORED and self.step not in _DONE

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "offset": self.offset,
            "topic_id": None if self.source is None else self.source.topic_id,
            "to_topic": None if self.to_place is None else self.to_place.topic,
            "to_partition": None if self.to_place is None else self.to_place.partition,
            **{name: getattr(self, name) for name in ("to_offset", "repeats", "waits_for", "withheld", "has", "reason")},
            "outcome": self.outcome.value,
            "step": self.step.value,
        }


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
        return Counter(one.outcome.value for one in self.partitions)

    def steps(self) -> Counter[str]:
        return Counter(one.step.value for one in self.partitions if one.step is not Step.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """`observed_at`: the look that the positions are of; `next_at`: the one after the time asked for, None if there was none."""

    asked: datetime
    observed_at: datetime
    next_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReport:
    """`origin` and `other` are the clusters' aliases: offsets of `origin` lead to `other`. `may_hide_groups`: `origin` leaves out
    groups that our user may not Describe."""

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
        """Whether every group is where it should be, as far as its topics are mirrored. Not where all of them may be hidden."""
        if not self.groups and self.may_hide_groups:
            return False
        return not any(one.is_left for one in self.partitions)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        as_of = None if self.as_of is None else {name: _text(value) for name, value in asdict(self.as_of).items()}
        groups = [
            {
                "group": one.name,
                "state": one.state,
                "clients": list(one.clients),
                "is_active_at_origin": one.is_active_at_origin,
                "partitions": [partition.document() for partition in one.partitions],
            }
            for one in self.groups
        ]
        known = {"mirror": self.mirror, "origin": self.origin, "other": self.other, "may_hide_groups": self.may_hide_groups}
        return {**known, "as_of": as_of, "groups": groups}


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
