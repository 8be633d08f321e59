"""Retention of an archive, interrupted at every step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.checkpoints.map_rows import Faulty, lose, once
from tests.support.archives import CLUSTER_ID, NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import EVERY_STATE, ArchiveTable, LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.logs import GroupPosition, GroupSyncPass, positions_as_of, record_pass
from shallow_mirror.checkpoints.logs.runs import RunHistory
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError, FencedError, OutcomeUnknownError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks import ArchiveOwner, RowCopies
from shallow_mirror.sinks.archive import Expiry, ObjectOwners, expiry, retention_of
from shallow_mirror.sinks.archive.expiry import DeletionFailedError
from shallow_mirror.types import SourcePartition

pytestmark = pytest.mark.thorough

PAYMENTS = SourcePartition("payments", "paypaypaypaypaypaypayA", 0)
DAY_MS = 86_400_000
STARTED, FINISHED, VISIBLE = (
    SegmentState.DELETE_SEGMENT_STARTED,
    SegmentState.DELETE_SEGMENT_FINISHED,
    SegmentState.COPY_SEGMENT_FINISHED,
)
LATER_MS = NOW_MS + 8 * DAY_MS


def written(folder: Path) -> ArchiveOfTest:
    """Objects of orders from day 0, 1, 5, and one of payments from day 0. At LATER_MS two of orders have expired."""
    archive = ArchiveOfTest(archive_config(folder, retention={"orders": {"keep": "7 days"}}))
    archive.archive({ORDERS: [batch(0, 10)]}, retention_class=1, pattern="orders")
    archive.archive({PAYMENTS: [batch(0, 10)]})
    archive.now_ms += DAY_MS
    archive.archive({ORDERS: [batch(10, 10)]}, retention_class=1, pattern="orders")
    archive.now_ms += 4 * DAY_MS
    archive.archive({ORDERS: [batch(20, 10)]}, retention_class=1, pattern="orders")
    return archive


def states(config: ArchiveConfig) -> list[SegmentState]:
    """Return the states of orders by offset; payments must be visible."""
    rows = list(ArchiveTable.open(config.tables).segments(states=EVERY_STATE))
    assert [row.state for row in rows if row.segment.source == PAYMENTS] == [VISIBLE]
    return [row.state for row in rows if row.segment.source == ORDERS]


def object_count(config: ArchiveConfig) -> int:
    return len(list(Path(config.objects).rglob("*.batches")))


def run_expire(config: ArchiveConfig, **options: object) -> expiry.Expired:
    return expire(config, takes_over=True, now_ms=lambda: LATER_MS, **options)  # type: ignore[arg-type]


def test_expired_objects_are_deleted_and_their_rows_stay(tmp_path: Path) -> None:
    archive = written(tmp_path)
    config, positions = archive.config, archive.owner.positions()
    names: list[str] = []
    dry = run_expire(config, is_dry_run=True, on_object=lambda found: names.append(found.name))
    assert (dry.object_count, len(names), states(config), object_count(config)) == (2, 2, [VISIBLE] * 3, 4)
    expired = run_expire(config)
    size_bytes = len(batch(0, 10)) + len(batch(10, 10))
    assert expired.sentence() == f"expired: 2 objects, 2 rows, {size_bytes} bytes"
    assert states(config) == [FINISHED, FINISHED, VISIBLE]
    assert object_count(config) == 2
    assert not any((Path(config.objects) / name).exists() for name in names)
    table = ArchiveTable.open(config.tables)
    assert table.positions() == positions
    assert [row.segment.source_start for row in table.segments(["orders"])] == [20]
    report = verify_archive(config, is_deep=True)
    assert (report.is_equal, report.findings.counts, report.row_count) == (True, {}, 4)
    assert run_expire(config).object_count == 0
    ArchiveOfTest(config).archive({ORDERS: [batch(30, 1)]})  # the capture continues
    assert verify_archive(config).is_equal


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    ("point", "left"),
    [("expire.started", STARTED), ("expire.copied", STARTED), ("expire.deleted", STARTED), ("expire.finished", FINISHED)],
)
def test_a_deletion_that_was_interrupted_is_repeated(tmp_path: Path, point: str, left: SegmentState) -> None:
    config = written(tmp_path).config

    def kill(passed: str) -> None:
        if passed == point:
            raise KilledError

    with pytest.raises(KilledError):
        run_expire(config, observer=kill)
    assert states(config) == [left, left, VISIBLE]
    assert verify_archive(config, is_deep=True).is_equal
    expired = run_expire(config)
    assert expired.object_count == (2 if left is STARTED else 0)
    assert (states(config), object_count(config)) == ([FINISHED, FINISHED, VISIBLE], 2)


def test_many_objects_are_deleted_in_several_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = written(tmp_path).config
    monkeypatch.setattr(expiry, "OBJECTS_AT_ONCE", 1)
    points: list[str] = []
    assert run_expire(config, observer=points.append).object_count == 2
    assert points == ["expire.started", "expire.copied", "expire.deleted", "expire.finished"] * 2
    assert states(config) == [FINISHED, FINISHED, VISIBLE]


def test_objects_that_the_store_does_not_delete_stay_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = written(tmp_path).config

    def refuse(*_: object) -> None:
        raise ConfigError("refused. Remedy: check the permissions")

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "delete", refuse)
        with pytest.raises(DeletionFailedError, match="check the permissions"):
            run_expire(config)
    assert (states(config), object_count(config)) == ([STARTED, STARTED, VISIBLE], 4)
    run_expire(config)
    assert (states(config), object_count(config)) == ([FINISHED, FINISHED, VISIBLE], 2)


def owner_of(config: ArchiveConfig, writer: Faulty) -> LedgerOwner:
    owner = LedgerOwner.take_over(
        config.tables, layout=ARCHIVE_LAYOUT, name=config.archive, source_cluster_id=CLUSTER_ID, target_cluster_id="archive",
        run=RunIdentity.of_this_process(), now_ms=lambda: LATER_MS, writer=writer,
    )  # fmt: skip
    owner.settle()
    return owner


def expiry_of(config: ArchiveConfig, owner: LedgerOwner) -> Expiry:
    table, store = ArchiveTable.open(config.tables), ObjectStore.open(config.objects)
    copies, owners = RowCopies(store, table.archive_id), ObjectOwners(store, table.archive_id)
    entry = owners.newest()
    assert entry is not None
    archive = ArchiveOwner(owner, copies, owners, entry, False)
    return Expiry(archive, table, store, retention_of(config.retention), now_ms=lambda: LATER_MS)


@pytest.mark.parametrize("step", ["before update", "after update"])
def test_a_commit_whose_response_was_lost_is_read_back(tmp_path: Path, step: str) -> None:
    config = written(tmp_path).config
    writer = Faulty(TableStorage.of(config.tables).decisions(ARCHIVE_LAYOUT))
    owner = owner_of(config, writer)
    writer.fault = once(step, lose)
    if step == "before update":
        with pytest.raises(OutcomeUnknownError):
            expiry_of(config, owner).run()
        assert states(config) == [VISIBLE] * 3
        owner.check_ownership()
        owner.settle()
    assert expiry_of(config, owner).run().object_count == 2
    assert states(config) == [FINISHED, FINISHED, VISIBLE]


def test_a_fenced_run_deletes_nothing(tmp_path: Path) -> None:
    config = written(tmp_path).config
    owner = owner_of(config, Faulty(TableStorage.of(config.tables).decisions(ARCHIVE_LAYOUT)))
    ArchiveOfTest(config)
    with pytest.raises(FencedError):
        expiry_of(config, owner).run()
    assert (states(config), object_count(config)) == ([VISIBLE] * 3, 4)


def test_a_run_that_is_fenced_between_the_commits_leaves_the_rest_to_the_next_one(tmp_path: Path) -> None:
    config = written(tmp_path).config
    with pytest.raises(FencedError):
        run_expire(config, observer=once("expire.deleted", lambda: ArchiveOfTest(config)))
    assert states(config) == [STARTED, STARTED, VISIBLE]
    run_expire(config)
    assert states(config) == [FINISHED, FINISHED, VISIBLE]


def test_mark_counts_no_rows_moves_no_position_and_allows_decisions(tmp_path: Path) -> None:
    archive = written(tmp_path)
    owner, before = archive.owner, archive.owner.recorded()
    (row, *_) = ArchiveTable.open(archive.config.tables).segments(["orders"])
    assert row.stored is not None
    owner.mark([row.stored.object_name], STARTED, (row.micro_batch, row.micro_batch))
    marked = owner.recorded()
    assert marked.version > before.version
    assert (marked.row_count, marked.micro_batch) == (before.row_count, before.micro_batch)
    owner.mark([row.stored.object_name], STARTED, (row.micro_batch, row.micro_batch))
    assert owner.recorded() == marked
    archive.archive({ORDERS: [batch(30, 1)]})
    assert states(archive.config) == [STARTED, VISIBLE, VISIBLE, VISIBLE]
    owner.check_ownership()


def test_a_running_archive_expires_once_in_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = written(tmp_path)
    config, now_s = archive.config, [0.0]
    table, store = ArchiveTable.open(config.tables), ObjectStore.open(config.objects)
    now_ms = [NOW_MS]
    running = Expiry(
        archive.archive_owner, table, store, retention_of(config.retention), now_ms=lambda: now_ms[0], clock=lambda: now_s[0]
    )
    running.run_if_due()
    assert states(config) == [VISIBLE] * 3
    now_ms[0] = LATER_MS
    running.run_if_due()
    assert states(config) == [VISIBLE] * 3
    now_s[0] += expiry.EXPIRE_EVERY_S
    with caplog.at_level("INFO"):
        running.run_if_due()
    assert states(config) == [FINISHED, FINISHED, VISIBLE]
    assert "expired: 2 objects, 2 rows" in caplog.text


def test_bytes_of_a_topic_are_kept(tmp_path: Path) -> None:
    archive = written(tmp_path)
    config = archive_config(tmp_path, retention={"orders": {"keep_bytes": len(batch(0, 10)) + 1}})
    assert expire(config, takes_over=True, now_ms=lambda: archive.now_ms).object_count == 1
    assert states(config) == [FINISHED, VISIBLE, VISIBLE]


def test_a_run_that_is_alive_is_not_fenced(tmp_path: Path) -> None:
    archive = written(tmp_path)
    with pytest.raises(ConfigError, match=r"the archive backup is running .*Stop it first, or take over with --take-over"):
        expire(archive.config)
    history = RunHistory(TableStorage.of(archive.config.tables).best_effort_tables())
    history.run_ended(archive.owner.run_epoch, archive.owner.recorded().run, "stopped")
    assert expire(archive.config, now_ms=lambda: LATER_MS).object_count == 2


def test_nothing_expires_without_retention(tmp_path: Path) -> None:
    written(tmp_path)
    config = archive_config(tmp_path)
    assert expire(config, takes_over=True, now_ms=lambda: LATER_MS).object_count == 0
    assert states(config) == [VISIBLE] * 3


@pytest.mark.parametrize("act", [lambda config: expire(config), lambda config: expire(config, is_dry_run=True)])
def test_a_table_that_is_not_there_is_a_config_error(tmp_path: Path, act: Callable[[ArchiveConfig], object]) -> None:
    with pytest.raises(ConfigError, match=r"run `shallow-mirror archive run` once, or check `tables`"):
        act(archive_config(tmp_path))
    assert not (tmp_path / "tables").exists()


def test_a_running_archive_finishes_an_interrupted_deletion_also_without_retention(tmp_path: Path) -> None:
    archive = written(tmp_path)
    (row, *_) = ArchiveTable.open(archive.config.tables).segments(["orders"])
    assert row.stored is not None
    archive.owner.mark([row.stored.object_name], STARTED, (row.micro_batch, row.micro_batch))
    expiry_of(archive_config(tmp_path), archive.owner).run_if_due()
    assert (states(archive.config), object_count(archive.config)) == ([FINISHED, VISIBLE, VISIBLE], 3)


def test_a_store_that_deletes_nothing_does_not_end_a_running_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    archive = written(tmp_path)

    def refuse(*_: object) -> None:
        raise ConfigError("refused. Remedy: check the permissions")

    monkeypatch.setattr(ObjectStore, "delete", refuse)
    expiry_of(archive.config, archive.owner).run_if_due()
    assert "expired objects were not deleted, this is tried again later: refused" in caplog.text
    archive.archive({ORDERS: [batch(30, 1)]})
    assert states(archive.config) == [STARTED, STARTED, VISIBLE, VISIBLE]


def test_notes_of_groups_are_kept_as_long_as_the_oldest_cut_needs_them(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"orders": {"keep": "7 days"}}, groups={"keep": "2 days"}))
    for day in range(6):
        archive.archive({ORDERS: [batch(10 * day, 10, timestamp=archive.now_ms)]}, retention_class=1, pattern="orders")
        archive.now_ms += DAY_MS
    tables = TableStorage.of(archive.config.tables).best_effort_tables()

    def note(day: float, offset: int, *, is_whole: bool) -> None:
        done = GroupSyncPass(observed_at=time_of(day), is_whole=is_whole)
        record_pass(tables, done, [GroupPosition(group="g", source=ORDERS, offset=offset)])

    def time_of(day: float) -> datetime:
        return datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(days=day)

    def recorded() -> list[float]:
        times = sorted(row["observed_at"] for row in tables.read("group_syncs", ()))
        assert times == sorted(row["observed_at"] for row in tables.read("group_offsets", ()))
        return [(time - time_of(0)) / timedelta(days=1) for time in times]

    for day in range(6):
        note(day - 0.5, 10 * day, is_whole=True)
        note(day, 10 * day + 1, is_whole=False)
    expire(archive.config, takes_over=True, now_ms=lambda: NOW_MS + 5 * DAY_MS)
    assert recorded() == [-0.5, 0.5, 1.5, 2.5, 3, 3.5, 4, 4.5, 5]
    # Of the data of days 0 and 1 nothing is kept at day 8.5: the oldest record is of day 2.
    assert expire(archive.config, takes_over=True, now_ms=lambda: NOW_MS + 8 * DAY_MS + DAY_MS // 2).object_count == 2
    assert recorded() == [1.5, 2.5, 3.5, 4.5, 5]
    oldest = positions_as_of(tables, time_of(2)).positions
    assert [(position.group, position.offset) for position in oldest] == [("g", 20)]
    expire(archive.config, takes_over=True, now_ms=lambda: NOW_MS + 99 * DAY_MS)
    assert recorded() == [4.5, 5]
