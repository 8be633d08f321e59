"""What an independent observer knows: what was produced at the source, and by whom else something was written at the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

OffsetSpan = tuple[int, int]
"""Half-open."""


class LogKey(NamedTuple):
    """A partition of one incarnation of a topic."""

    topic: str
    topic_id: str
    partition: int


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False)
class SourceTxn:
    outcome: Outcome = Outcome.OPEN


@dataclass(frozen=True, slots=True)
class Produced:
    offset: int
    value: str
    txn: SourceTxn | None


@dataclass
class SourceLog:
    """`end`: behind the last record or marker. `deleted_before`: by retention or DeleteRecords. `uncommitted`: spans that a mirror
    may have read without waiting for transactions. `repeats`: spans that an operator let a mirror copy once more.
    """

    records: list[Produced] = field(default_factory=list)
    markers: dict[int, bool] = field(default_factory=dict)
    """Whether it commits, by offset."""
    end: int = 0
    deleted_before: int = 0
    uncommitted: list[OffsetSpan] = field(default_factory=list)
    repeats: list[OffsetSpan] = field(default_factory=list)
    is_gone: bool = False

    @property
    def stable_end(self) -> int:
        """Return where a read_committed reader stops."""
        open_records = (record.offset for record in self.records if record.txn and record.txn.outcome is Outcome.OPEN)
        return min(open_records, default=self.end)

    def is_committed(self, record: Produced) -> bool:
        return record.txn is None or record.txn.outcome is Outcome.COMMITTED

    def is_aborted(self, record: Produced) -> bool:
        return record.txn is not None and record.txn.outcome is Outcome.ABORTED

    def may_be_copied(self, record: Produced) -> bool:
        return self.is_committed(record) or is_within(record.offset, self.uncommitted)


@dataclass
class TargetLog:
    """What a read_committed reader sees: values by offset. `start`: what is below it was deleted."""

    values: dict[int, str] = field(default_factory=dict)
    start: int = 0
    is_gone: bool = False


def is_within(offset: int, spans: Iterable[OffsetSpan]) -> bool:
    return any(start <= offset < end for start, end in spans)
