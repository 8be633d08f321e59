"""Driver: when a table of decisions is compacted and cleaned up, between micro-batches."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace

from shallow_mirror.checkpoints.commit_attempts import try_commit
from shallow_mirror.checkpoints.commit_metadata import Recorded
from shallow_mirror.checkpoints.table_protocol import TableSnapshot, TableWriter

_log = logging.getLogger(__name__)

COMPACT_EVERY_DECISIONS = 200
"""Readers open every small file: hundreds of them take longer than all rows that were compacted before."""
CLEAN_EVERY_DECISIONS = 1000
_ATTEMPTS = 3


def compact_if_due(writer: TableWriter, recorded: Recorded, snapshot: Callable[[], TableSnapshot], title: str) -> Recorded | None:
    """Rewrite small files, and less often clean up. Return what the table records then; None where nothing was due or it failed.

    `snapshot` reads the table, and raises where it is not this run's. What fails otherwise is logged.
    """
    if recorded.micro_batch - recorded.compacted_micro_batch < COMPACT_EVERY_DECISIONS:
        return None
    compacted = replace(recorded, compacted_micro_batch=recorded.micro_batch)
    failure = None
    for _ in range(_ATTEMPTS):
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
