"""Driver: one attempt to commit to a table of decisions, and what is in it afterwards. `title`: what messages call the table."""

from __future__ import annotations

from collections.abc import Callable

from shallow_mirror.checkpoints.table_protocol import DeltaCommitError, TableSnapshot, TableWriter
from shallow_mirror.errors import OutcomeUnknownError

ATTEMPTS = 20
"""How often a commit that surely lost its table version to compaction is tried again."""


def try_commit(write: Callable[[], None]) -> DeltaCommitError | None:
    """Return why the commit failed; None where it was made. Only reading back says what is in the table."""
    try:
        write()
    except DeltaCommitError as failure:
        return failure
    return None


def read_snapshot(writer: TableWriter, title: str) -> TableSnapshot | None:
    """Return the newest state; None where there is no table. Raises OutcomeUnknownError where the store does not answer."""
    try:
        return writer.snapshot()
    except OSError as error:
        raise OutcomeUnknownError(f"{title} cannot be read: {error}") from error


def read_back(writer: TableWriter, failure: DeltaCommitError | None, before: TableSnapshot, title: str) -> TableSnapshot:
    """Return the state after a commit on `before`. Raises OutcomeUnknownError."""
    try:
        snapshot = writer.reread(before) if failure is None else writer.snapshot()
    except OSError as error:
        raise OutcomeUnknownError(f"{title} cannot be read: {error}") from error
    if snapshot is None:
        raise OutcomeUnknownError(f"{title} is gone after a commit: {failure}") from failure
    return snapshot
