"""Driver: the take-over of a table of decisions: the commit with which a run claims it, and fences every older run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from shallow_mirror.checkpoints.commit_attempts import ATTEMPTS, read_back, read_snapshot, try_commit
from shallow_mirror.checkpoints.commit_metadata import Recorded, RunIdentity, check_table, read_recorded, version_of
from shallow_mirror.checkpoints.schema import PROPERTY_MAP_ID, properties_of_new_map
from shallow_mirror.checkpoints.table_layout import TableLayout
from shallow_mirror.checkpoints.table_protocol import TableSnapshot, TableWriter
from shallow_mirror.errors import FencedError, OffsetMapConflictError, OutcomeUnknownError


def claim(
    writer: TableWriter,
    layout: TableLayout,
    expected: Mapping[str, str],
    run: RunIdentity,
    slots: int,
    before_creation: Callable[[], None],
    accepted_version: int = 0,
) -> tuple[Recorded, str]:
    """Return what the table records of this run, and the id of the map or archive. `expected`: the properties of the table.

    Arguments and errors are those of `OffsetMapOwner.take_over`.
    """
    writer.repair_log()
    for _ in range(ATTEMPTS):
        before = read_snapshot(writer, layout.title)
        if before is None:
            before_creation()
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
            run=run,
            # What this run may use the next start has to fence, also if this run dies before it decides anything.
            highest_slot=max(-1 if recorded is None else recorded.highest_slot, slots - 1),
        )
        failure = try_commit(functools.partial(_append_claim, writer, layout, before, claimed))
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


def _append_claim(writer: TableWriter, layout: TableLayout, before: TableSnapshot, claimed: Recorded) -> None:
    writer.append(before, layout.schema.empty_table(), claimed.version, claimed.metadata())
