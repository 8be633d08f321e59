"""A restore beside the run of its archive."""

from __future__ import annotations

import pytest
from tests.support.archives import object_files, replace_files
from tests.support.inline_restores import InlineRestores
from tests.support.inline_session import InlineSession

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.errors import MirrorError, ObjectMissingError
from shallow_mirror.streaming.planning import RestorePlanner
from shallow_mirror.streaming.runs import Restore

pytestmark = pytest.mark.thorough


def test_a_table_that_a_running_archive_compacts_meanwhile_is_read_on(
    restores: InlineRestores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestorePlanner, "_last_decisions", lambda *_: [1, 2])
    compact = [replace_files]

    def observer(point: str) -> None:
        while point == "Decide" and compact:
            compact.pop()(restores.archive.config)

    assert Restore(restores.config(), observer=observer).run(InlineSession()) == ()
    assert (restores.records("east.orders"), compact) == (10, [])


def test_objects_that_retention_deletes_meanwhile_are_named_with_their_offsets(restores: InlineRestores) -> None:
    archive = restores.archive
    expired = [row.stored.object_name for row in ArchiveTable.open(archive.config.tables).rows() if row.stored is not None][:1]

    def observer(point: str) -> None:
        if point == "TakeDecision" and expired:
            archive.owner.mark(expired, SegmentState.DELETE_SEGMENT_STARTED, (1, 1))
            archive.store.delete(expired)
            expired.clear()

    with pytest.raises(MirrorError, match="orders-0: the archive no longer has offsets 0 to 4: its retention deleted them since"):
        Restore(restores.config(), observer=observer).run(InlineSession())


@pytest.mark.parametrize(("decision", "gone"), [(1, "offsets 0 to 4"), (2, "offsets 5 to 9")], ids=["the first", "the last"])
def test_a_dry_run_and_a_start_refuse_what_retention_has_deleted_since_the_restore_began(
    restores: InlineRestores, decision: int, gone: str
) -> None:
    restores.crash("RunSlots")
    archive = restores.archive
    rows = [row for row in ArchiveTable.open(archive.config.tables).rows() if row.micro_batch == decision]
    expired = sorted({row.stored.object_name for row in rows if row.stored is not None})
    archive.owner.mark(expired, SegmentState.DELETE_SEGMENT_STARTED, (decision, decision))
    archive.store.delete(expired)
    planned = restores.dry_run()
    assert not planned.is_fine
    assert any(f"orders-0: the archive no longer has {gone}" in problem for problem in planned.problems)
    with pytest.raises(MirrorError, match=r"retention"):
        restores.restore()


def test_an_object_that_is_missing_is_named(restores: InlineRestores) -> None:
    object_files(restores.archive.config)[0].unlink()
    with pytest.raises(ObjectMissingError):
        restores.restore()
