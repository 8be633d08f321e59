"""Driver and commands: the table `denied_writes`: Deny ACLs of a mirror, so that only the mirror writes to its target topics.

A row is on the disk before its ACL is created, and another one once the ACL is deleted: the ACL of an operator is not in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, Self

from shallow_mirror.checkpoints.rows.codec import TimeMs, row_codec
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage

DENIED_WRITES_TABLE = "denied_writes"


class DeniedWrite(NamedTuple):
    """Deny Write on the topic `topic` of the target to `principal`."""

    topic: str
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedWriteRow:
    """A row of the table."""

    topic: str
    principal: str
    is_denied: bool
    sequence: int
    at_ms: TimeMs


DENIED_WRITES = row_codec(DeniedWriteRow)


class DeniedWrites:
    """Raises as `DurableTable`."""

    def __init__(self, table: DurableTable[DeniedWriteRow], now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._table, self._now_ms = table, now_ms

    @classmethod
    def open(cls, storage: TableStorage) -> Self:
        return cls(storage.durable_table(DENIED_WRITES_TABLE, DENIED_WRITES))

    def read(self) -> frozenset[DeniedWrite]:
        """Return those that are denied, as the last rows have them."""
        newest: dict[DeniedWrite, bool] = {}
        for row in sorted(self._table.read(), key=lambda row: row.sequence):
            newest[DeniedWrite(row.topic, row.principal)] = row.is_denied
        return frozenset(denied for denied, is_denied in newest.items() if is_denied)

    def read_former(self) -> frozenset[DeniedWrite]:
        """Return also those whose deletion is recorded: one that was created late is in force all the same."""
        return frozenset(DeniedWrite(row.topic, row.principal) for row in self._table.read())

    def record(self, denied: Collection[DeniedWrite], *, is_denied: bool) -> None:
        """Add rows; on the disk when it returns."""
        if not denied:
            return
        newest = max((row["sequence"] for row in self._table.read_columns((), ["sequence"])), default=0)
        at_ms = self._now_ms()
        self._table.append(
            [
                DeniedWriteRow(topic=each.topic, principal=each.principal, is_denied=is_denied, sequence=sequence, at_ms=at_ms)
                for sequence, each in enumerate(sorted(denied), start=newest + 1)
            ]
        )
