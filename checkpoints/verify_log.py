"""Driver: the table `audit`: what was verified, when, by whom, and with what outcome.

An interrupted verification continues from it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.schema import TIMESTAMP
from shallow_mirror.checkpoints.table_protocol import Comparison
from shallow_mirror.types import OffsetRange, SourcePartition, TargetPartition

AUDIT_TABLE = "audit"

BEGUN, EQUAL, DIFFERENT, FINISHED = "begun", "equal", "different", "finished"
"""Outcomes. A range is equal or different; the first and the last row of an audit have no partition."""

AUDIT = pa.schema(
    [
        ("audit_id", pa.string()),
        ("scope", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("version", pa.string()),
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("source_start", pa.int64()),
        ("source_end", pa.int64()),
        ("target_topic", pa.string()),
        ("target_topic_id", pa.string()),
        ("target_partition", pa.int32()),
        ("target_start", pa.int64()),
        ("target_end", pa.int64()),
        ("batch_count", pa.int64()),
        ("opened_batch_count", pa.int64()),
        ("record_count", pa.int64()),
        ("source_bytes", pa.int64()),
        ("target_bytes", pa.int64()),
        ("unchecked", pa.string()),
        ("difference_counts", pa.string()),
        ("differences", pa.string()),
        ("outcome", pa.string()),
        ("verified_at", TIMESTAMP),
    ]
)

FLUSH_S = 2.0
"""Rows wait for each other so long: a kill loses what was verified since, which is then verified again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyIdentity:
    """`scope` says what is verified and how; only an audit of the same scope is continued."""

    audit_id: str
    scope: str
    host: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRange:
    """The last three are JSON in the table: source offsets by reason, differences by kind, and the first of them whole."""

    source: SourcePartition
    target: TargetPartition
    source_range: OffsetRange
    target_range: OffsetRange
    batch_count: int
    opened_batch_count: int
    record_count: int
    source_bytes: int
    target_bytes: int
    unchecked: Mapping[str, int]
    difference_counts: Mapping[str, int]
    differences: Sequence[Mapping[str, Any]]


def interrupted_verification(tables: BestEffortTables, scope: str) -> tuple[str, list[VerifiedRange]] | None:
    """Return id and ranges of the newest verification, if it was of this scope and did not finish."""
    begun = tables.read(AUDIT_TABLE, (Comparison("outcome", "=", BEGUN),))
    finished = {row["audit_id"] for row in tables.read(AUDIT_TABLE, (Comparison("outcome", "=", FINISHED),))}
    newest = max(begun, key=lambda row: row["verified_at"], default=None)
    if newest is None or newest["audit_id"] in finished or newest["scope"] != scope:
        return None
    rows = tables.read(AUDIT_TABLE, (Comparison("audit_id", "=", newest["audit_id"]), Comparison("outcome", "!=", BEGUN)))
    return newest["audit_id"], [_range_of(row) for row in rows]


class VerifyLog:
    """Write rows in the order they come, a few at a time. Only `finish` ends the verification."""

    def __init__(
        self,
        tables: BestEffortTables,
        audit: VerifyIdentity,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        flush_s: float = FLUSH_S,
    ) -> None:
        self._tables = tables
        self._audit = audit
        self._clock, self._now_ms = clock, now_ms
        self._flush_s = flush_s
        self._waiting: list[dict[str, Any]] = []
        self._flushed = clock()

    def begin(self) -> None:
        self._add({"outcome": BEGUN})
        self.flush()

    def note(self, verified: VerifiedRange) -> None:
        self._add(_row_of(verified))
        if self._clock() - self._flushed >= self._flush_s:
            self.flush()

    def finish(self) -> None:
        self._add({"outcome": FINISHED})

    def flush(self) -> None:
        if self._waiting:
            columns = [pa.array([row.get(field.name) for row in self._waiting], field.type) for field in AUDIT]
            self._tables.append(AUDIT_TABLE, pa.table(columns, schema=AUDIT))
            self._tables.flush()
        self._waiting, self._flushed = [], self._clock()

    def _add(self, row: Mapping[str, Any]) -> None:
        of_audit = {name: getattr(self._audit, name) for name in self._audit.__dataclass_fields__}
        self._waiting.append({**of_audit, **row, "verified_at": self._now_ms() * 1000})


_COUNTS = ("batch_count", "opened_batch_count", "record_count", "source_bytes", "target_bytes")
_DOCUMENTS = ("unchecked", "difference_counts", "differences")


def _row_of(verified: VerifiedRange) -> dict[str, Any]:
    source, target = verified.source, verified.target
    return {
        "source_topic": source.topic,
        "source_topic_id": source.topic_id,
        "source_partition": source.partition,
        "source_start": verified.source_range.start,
        "source_end": verified.source_range.end,
        "target_topic": target.topic,
        "target_topic_id": target.topic_id,
        "target_partition": target.partition,
        "target_start": verified.target_range.start,
        "target_end": verified.target_range.end,
        **{name: getattr(verified, name) for name in _COUNTS},
        **{name: json.dumps(getattr(verified, name)) for name in _DOCUMENTS},
        "outcome": DIFFERENT if verified.difference_counts else EQUAL,
    }


def _range_of(row: Mapping[str, Any]) -> VerifiedRange:
    return VerifiedRange(
        source=SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]),
        target=TargetPartition(row["target_topic"], row["target_topic_id"], row["target_partition"]),
        source_range=OffsetRange(row["source_start"], row["source_end"]),
        target_range=OffsetRange(row["target_start"], row["target_end"]),
        **{name: row[name] for name in _COUNTS},
        **{name: json.loads(row[name]) for name in _DOCUMENTS},
    )
