"""Driver: the table `audit`: what was verified, when, by whom, and with what outcome.

An interrupted verification continues from it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from shallow_mirror.checkpoints.rows.codec import Inline, Json, TimeMs, row_codec
from shallow_mirror.checkpoints.tables.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.tables.table_protocol import Comparison
from shallow_mirror.processes import is_process
from shallow_mirror.types import OffsetRange, SourcePartition, TargetPartition

AUDIT_TABLE = "audit"

BEGUN, EQUAL, DIFFERENT, FINISHED = "begun", "equal", "different", "finished"
"""Outcomes. A range is equal or different; the first and the last row of an audit have no partition."""

_FLUSH_S = 2.0
"""Rows wait for each other so long: a kill loses what was verified since, which is then verified again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyIdentity:
    """`scope`: topics, depth and isolation level of the audit; only an audit of the same scope is continued."""

    audit_id: str
    scope: str
    host: str
    pid: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRange:
    """A range of a partition that was verified. `COUNTS`: the fields that are added up."""

    COUNTS: ClassVar = ("batch_count", "opened_batch_count", "record_count", "source_bytes", "target_bytes")

    source: SourcePartition
    source_range: Annotated[OffsetRange, Inline("source_")]
    target: TargetPartition
    target_range: Annotated[OffsetRange, Inline("target_")]
    batch_count: int
    opened_batch_count: int
    record_count: int
    source_bytes: int
    target_bytes: int
    unchecked: Annotated[Mapping[str, int], Json()]
    """Source offsets by reason."""
    difference_counts: Annotated[Mapping[str, int], Json()]
    """By kind."""
    differences: Annotated[Sequence[Mapping[str, Any]], Json()]
    """The first of them."""
    digest: str | None = None
    """Of everything that was found equal, hexadecimal; those of ranges are added. None in rows of older releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """A row of the table. The first and the last one of a verification have no range."""

    identity: Annotated[VerifyIdentity, Inline()]
    verified: Annotated[VerifiedRange | None, Inline()] = None
    outcome: str
    verified_at_ms: TimeMs
    result: Annotated[Mapping[str, Any] | None, Json()] = None
    """Of the whole verification, in its last row: as `VerifyReport.summary`. None as well in rows of older releases."""


AUDIT = row_codec(AuditRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedVerification:
    """A verification as the table has it."""

    audit_id: str
    scope: Mapping[str, Any]
    """`topics` (None: all), `deep`, and for the end of a migration `after` and `known`."""
    host: str
    version: str
    began_at_ms: int
    finished_at_ms: int | None
    """None: it was interrupted, or is under way."""
    result: Mapping[str, Any] | None
    """None as well if an older release has verified."""
    ends: Mapping[SourcePartition, int]
    """The source offset up to which each partition was compared."""

    @classmethod
    def newest(cls, tables: BestEffortTables, most: int) -> list[RecordedVerification]:
        """Return the verifications that began last, the newest first."""
        begun = sorted(_read(tables, Comparison("outcome", "=", BEGUN)), key=lambda row: row.verified_at_ms, reverse=True)
        finished = {row.identity.audit_id: row for row in _read(tables, Comparison("outcome", "=", FINISHED))}
        return [
            cls(
                audit_id=row.identity.audit_id,
                scope=json.loads(row.identity.scope),
                host=row.identity.host,
                version=row.identity.version,
                began_at_ms=row.verified_at_ms,
                finished_at_ms=None if (end := finished.get(row.identity.audit_id)) is None else end.verified_at_ms,
                result=None if end is None else end.result,
                ends=_ends(tables, row.identity.audit_id),
            )
            for row in begun[:most]
        ]


def _ends(tables: BestEffortTables, audit_id: str) -> dict[SourcePartition, int]:
    ends: dict[SourcePartition, int] = {}
    for row in _read(tables, Comparison("audit_id", "=", audit_id)):
        if row.verified is not None:
            source = row.verified.source
            ends[source] = max(ends.get(source, 0), row.verified.source_range.end)
    return ends


def interrupted_verification(tables: BestEffortTables, scope: str) -> tuple[str, list[VerifiedRange]] | None:
    """Return id and ranges of the newest verification, if it was of this scope and did not finish.

    One that another process of this machine is making is not interrupted.
    """
    begun = _read(tables, Comparison("outcome", "=", BEGUN))
    finished = {row.identity.audit_id for row in _read(tables, Comparison("outcome", "=", FINISHED))}
    newest = max(begun, key=lambda row: row.verified_at_ms, default=None)
    if newest is None or newest.identity.audit_id in finished or newest.identity.scope != scope:
        return None
    audit_id = newest.identity.audit_id
    rows = _read(tables, Comparison("audit_id", "=", audit_id))
    if _is_under_way(max(rows, key=lambda row: row.verified_at_ms).identity):
        return None
    return audit_id, [row.verified for row in rows if row.verified is not None]


def _is_under_way(last: VerifyIdentity) -> bool:
    """Return whether the process that has written last still runs, as far as this machine can tell."""
    return last.host == socket.gethostname() and last.pid != os.getpid() and is_process(last.pid)


def _read(tables: BestEffortTables, *condition: Comparison) -> list[AuditRow]:
    return AUDIT.rows(tables.read(AUDIT_TABLE, condition))


class VerifyLog:
    """Write rows in the order they come, a few at a time. Only `finish` ends the verification."""

    def __init__(
        self,
        tables: BestEffortTables,
        identity: VerifyIdentity,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        flush_s: float | None = None,
    ) -> None:
        self._tables = tables
        self._identity = identity
        self._clock, self._now_ms = clock, now_ms
        self._flush_s = _FLUSH_S if flush_s is None else flush_s
        self._waiting: list[AuditRow] = []
        self._flushed = clock()

    def begin(self) -> None:
        self._add(BEGUN)
        self.flush()

    def note(self, verified: VerifiedRange) -> None:
        self._add(DIFFERENT if verified.difference_counts else EQUAL, verified)
        if self._clock() - self._flushed >= self._flush_s:
            self.flush()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Record the end of the verification, with its result, and write all rows."""
        self._add(FINISHED, result=result)
        self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._tables.append(AUDIT_TABLE, AUDIT.to_arrow(self._waiting))
            self._tables.flush()
        self._waiting, self._flushed = [], self._clock()

    def _add(self, outcome: str, verified: VerifiedRange | None = None, *, result: Mapping[str, Any] | None = None) -> None:
        at_ms = self._now_ms()
        row = AuditRow(identity=self._identity, verified=verified, outcome=outcome, verified_at_ms=at_ms, result=result)
        self._waiting.append(row)
