"""Driver: commits to a table of decisions: an attempt and what is in the table after it, the take-over by a run, compaction.

A run claims the table with its first commit, which fences every older run. `title`: what messages call the table.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from shallow_mirror.checkpoints.ledger.commit_metadata import Recorded, RunIdentity, check_table, read_recorded, version_of
from shallow_mirror.checkpoints.rows.schema import PROPERTY_MAP_ID, properties_of_new_map
from shallow_mirror.checkpoints.rows.table_layout import TableLayout
from shallow_mirror.checkpoints.tables.table_protocol import DeltaCommitError, TableSnapshot, TableWriter
from shallow_mirror.errors import ConfigError, FencedError, OffsetMapConflictError, OutcomeUnknownError

ATTEMPTS = 20
"""How often a commit that surely lost its table version to compaction is tried again."""

_log = logging.getLogger(__name__)

COMPACT_EVERY_DECISIONS = 200
"""Readers open every small file: hundreds of them take longer than all rows that were compacted before."""
CLEAN_EVERY_DECISIONS = 1000
_TAKE_OVER_ATTEMPTS = 3


def try_commit(write: Callable[[], None]) -> DeltaCommitError | None:
    """Return why the commit failed; None if it was made. Only reading back shows the content of the table."""
    try:
        write()
    except DeltaCommitError as failure:
        return failure
    return None


def read_snapshot(writer: TableWriter, title: str) -> TableSnapshot | None:
    """Return the newest state; None if there is no table. Raises OutcomeUnknownError if the store does not answer."""
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


def compact_if_due(writer: TableWriter, recorded: Recorded, snapshot: Callable[[], TableSnapshot], title: str) -> Recorded | None:
    """Rewrite small files, and less often clean up. Return the records of the table then; None if nothing was due or it failed.

    `snapshot` reads the table, and raises if it is not this run's. Other failures are logged.
    """
    if recorded.micro_batch - recorded.compacted_micro_batch < COMPACT_EVERY_DECISIONS:
        return None
    compacted = replace(recorded, compacted_micro_batch=recorded.micro_batch)
    failure = None
    for _ in range(_TAKE_OVER_ATTEMPTS):
        failure = try_commit(functools.partial(writer.compact, snapshot(), compacted.metadata()))
        if failure is None:
            break
    cleans = recorded.compacted_micro_batch // CLEAN_EVERY_DECISIONS < compacted.micro_batch // CLEAN_EVERY_DECISIONS
    if failure is None and cleans:
        failure = try_commit(writer.clean_up)
    if failure is not None:
        _log.warning("compaction of %s failed, it will be retried: %s", title, failure)
        return None
    return compacted


def claim(
    writer: TableWriter,
    layout: TableLayout,
    expected: Mapping[str, str],
    run: RunIdentity,
    slots: int,
    before_creation: Callable[[], None],
    accepted_version: int = 0,
) -> tuple[Recorded, str]:
    """Return the table's records of this run, and the id of the map or archive. `expected`: the properties of the table.

    Arguments and errors are those of `LedgerOwner.take_over`.
    """
    writer.repair_log()
    for _ in range(ATTEMPTS):
        before = read_snapshot(writer, layout.title)
        if before is None:
            try:
                before_creation()
            except ConfigError:
                if read_snapshot(writer, layout.title) is None:
                    raise
                continue  # another run of this mirror has created the table meanwhile, and what was found is its own
            writer.create(properties_of_new_map(expected))
            continue
        check_table(before, expected, layout)
        recorded = read_recorded(before, layout.title)
        if recorded is not None and recorded.run.run_id == run.run_id:
            # An earlier call was written although its outcome was unknown: claiming again would fence ourselves.
            return recorded, before.properties[PROPERTY_MAP_ID]
        epoch = 0 if recorded is None else recorded.run_epoch
        known = recorded or Recorded(version=0, run=run)
        claimed = replace(
            known,
            # Above the run epoch of what is accepted as well: what is decided from now on is newer than all receipts.
            version=version_of(max(epoch, accepted_version >> 32) + 1, 0),
            decided_version=max(known.decided_version, accepted_version),
            # A decision that is accepted has receipts of a run that these tables do not know.
            decided_run_id="" if accepted_version else known.decided_run_id,
            run=run,
            # What this run may use the next start has to fence, also if this run dies before it decides anything.
            highest_slot=max(-1 if recorded is None else recorded.highest_slot, slots - 1),
        )
        empty = layout.schema.empty_table()
        failure = try_commit(functools.partial(writer.append, before, empty, claimed.version, claimed.metadata()))
        after = read_back(writer, failure, before, layout.title)
        latest = read_recorded(after, layout.title)
        if latest is not None and latest.run.run_id == run.run_id:
            return latest, after.properties[PROPERTY_MAP_ID]
        if latest is not None and latest.run_epoch > epoch:
            raise FencedError(f"{latest.run}, run epoch {latest.run_epoch}")
        # Nothing came: the commit failed and may still land. Anything else that came (compaction) took its version for sure.
        if after.delta_version == before.delta_version:
            raise OutcomeUnknownError(f"taking over {layout.title}: {failure}") from failure
    raise OffsetMapConflictError(f"could not take over {layout.title} in {ATTEMPTS} attempts: other writers keep committing")
