"""Pure: problems of a mirror that an operator may have to fix, as values."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Annotated, Any

from shallow_mirror.checkpoints.rows.codec import Column, Inline, Int32, TimeMs, row_codec
from shallow_mirror.types import TopicPartition

_NUMBERS = re.compile(r"\d+")


class ProblemKind(enum.StrEnum):
    RETRIABLE = "retriable"
    """Failed without effect, and is tried again."""
    WAIT = "wait"
    """Takes longer than is usual."""
    QUARANTINED = "quarantined"
    EXPIRED = "expired"
    """The source deleted it before it was copied."""
    TRUNCATED = "truncated"
    """The source's log was cut below the position: it holds other records there, which are not copied."""
    CONFIG = "config"
    """A setting of a topic."""
    LEFT_OUT = "left_out"
    """A partition is broken, and the others are copied without it."""
    GROUP = "group"
    """Consumer groups could not be synchronized."""
    ACL = "acl"
    """ACLs could not be compared, created or deleted."""
    QUOTA = "quota"
    """Quotas could not be compared or created."""
    SCHEMA = "schema"
    """Schemas could not be compared or registered, or conflict with those of the target."""
    HEARTBEAT = "heartbeat"
    """A heartbeat in MirrorMaker 2's format could not be written."""
    ENDED = "ended"
    """What ended a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    kind: ProblemKind
    error_name: str | None = None
    """Kafka's, or the type of ours."""
    place: Annotated[TopicPartition | None, Column("source")] = None
    """None: no partition of the source in particular."""
    text: Annotated[str, Column("problem")]
    remedy: str
    topic: str | None = None
    """The source topic, where one is concerned; rows have it also where `place` does, those of older releases never."""

    @property
    def source_topic(self) -> str | None:
        """Return the source topic that it concerns, if it is one."""
        return self.topic if self.place is None else self.place.topic

    @property
    def key(self) -> object:
        # With the topic: names of topics may differ in nothing but numbers.
        return self.kind, self.error_name, self.place, self.source_topic, _NUMBERS.sub("#", self.text)

    def __str__(self) -> str:
        return self.text if self.place is None or str(self.place) in self.text else f"{self.place}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedProblem:
    """`problem` as it was met last."""

    run_epoch: Int32
    number: Int32
    """Tells the problems of a run apart. Of several rows of one, the one with the most occurrences holds."""
    problem: Annotated[Problem, Inline()]
    occurrences: int
    first_at_ms: TimeMs
    last_at_ms: TimeMs

    def document(self) -> dict[str, Any]:
        """For JSON."""
        problem, topic_partition = self.problem, self.problem.place
        return {
            "run_epoch": self.run_epoch,
            "kind": problem.kind.value,
            "error_name": problem.error_name,
            "topic": problem.source_topic,
            "partition": None if topic_partition is None else topic_partition.partition,
            "problem": problem.text,
            "remedy": problem.remedy,
            "occurrences": self.occurrences,
            "first_at_ms": self.first_at_ms,
            "last_at_ms": self.last_at_ms,
        }


PROBLEMS = row_codec(CountedProblem)
