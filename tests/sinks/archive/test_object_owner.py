"""The table that an archive's objects belong to, and objects that are not where the archive file says."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support import restore_runs
from tests.support.archives import CLUSTER_ID, NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints import first_rows_at
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ArchiveFormatError, ConfigError, FencedError
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.restore.dry_run import dry_run
from shallow_mirror.sinks.archive.object_owner import KEPT_OWNERS, ObjectOwner, ObjectOwners
from shallow_mirror.streaming.runs import Archive, Restore
from shallow_mirror.types import TargetPartition

pytestmark = pytest.mark.thorough


def written(folder: Path) -> ArchiveOfTest:
    archive = ArchiveOfTest(archive_config(folder))
    archive.archive({ORDERS: [batch(0, 10)]})
    return archive


def entries(config: ArchiveConfig) -> list[int]:
    return sorted(int(path.stem) for path in Path(config.objects).rglob("owners/*.json"))


def test_each_take_over_adds_an_entry_and_fences_the_run_before(tmp_path: Path) -> None:
    first = written(tmp_path)
    first.archive_owner.check()
    second = ArchiveOfTest(first.config, now_ms=NOW_MS + 1)
    with pytest.raises(FencedError, match=r"the table in .*/tables \(run 2, since 2023-11-14T22:13:20\+00:00\)"):
        first.archive_owner.check()
    second.archive_owner.check()
    for _ in range(KEPT_OWNERS):
        ArchiveOfTest(first.config)
    assert entries(first.config) == list(range(3, KEPT_OWNERS + 3))


def test_of_two_entries_of_one_number_the_first_counts(tmp_path: Path) -> None:
    archive = written(tmp_path)
    owners = ObjectOwners(archive.store, archive.owner.map_id)
    other = ObjectOwner(
        number=2, table_id="other", source_cluster_id=CLUSTER_ID, tables="/other", run_epoch=9, run_id="r", at_ms=NOW_MS
    )
    assert owners.put(other)
    assert not owners.put(replace(other, table_id="third"))
    assert owners.newest() == other


def test_of_two_runs_that_add_an_entry_at_once_the_later_one_owns_the_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has taken over the table, and adds its entry when the second one has taken over as well."""
    config = written(tmp_path).config
    put, held, first = ObjectOwners.put, threading.Event(), list[BaseException]()

    def run_first() -> None:
        try:
            ArchiveOfTest(config)
        except FencedError as error:
            first.append(error)

    def late(self: ObjectOwners, entry: ObjectOwner) -> bool:
        if entry.run_epoch == 2:
            assert held.wait(10)
        elif entry.run_epoch == 3:
            held.set()
            thread.join(10)  # its entry has the number that this one was to have
        return put(self, entry)

    monkeypatch.setattr(ObjectOwners, "put", late)
    thread = threading.Thread(target=run_first)
    thread.start()
    while (recorded := ArchiveTable.open(config.tables).recorded()) is None or recorded.run_epoch < 2:
        time.sleep(0.01)
    second = ArchiveOfTest(config)
    second.archive_owner.check()
    assert [type(error) for error in first] in ([], [FencedError])
    assert entries(config) == [1, 2, 3]


def test_an_entry_that_is_listed_late_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)
    ArchiveOfTest(archive.config)
    monkeypatch.setattr(ObjectOwners, "_numbers", lambda _self: [1])
    newest = ObjectOwners(archive.store, archive.owner.map_id).newest()
    assert newest is not None
    assert newest.number == 2
    with pytest.raises(FencedError):
        archive.archive_owner.check()


def test_a_folder_that_is_unmounted_under_a_run_is_not_another_run(tmp_path: Path) -> None:
    archive = written(tmp_path)
    (tmp_path / "objects").rename(tmp_path / "aside")
    with pytest.raises(ConfigError, match=r"no longer holds the objects of this archive: .* that the folder is mounted"):
        archive.archive_owner.check()


def test_an_older_copy_of_the_table_is_refused(tmp_path: Path) -> None:
    archive = written(tmp_path)
    copied = archive.config.model_copy(update={"tables": str(tmp_path / "copy")})
    shutil.copytree(archive.config.tables, copied.tables)
    ArchiveOfTest(archive.config)
    with pytest.raises(ConfigError, match=r"is newer than this copy of it: set `tables` to it"):
        ArchiveOfTest(copied)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_damaged_entry_is_named(tmp_path: Path, content: str) -> None:
    archive = written(tmp_path)
    (path,) = Path(archive.config.objects).rglob("owners/*.json")
    path.write_text(content)
    expected = "Use a newer shallow-mirror" if "2" in content else "does not name the owner of the archive's objects"
    with pytest.raises((ArchiveFormatError, ConfigError), match=expected):
        ArchiveOfTest(archive.config)


def move_away(archive: ArchiveOfTest) -> ArchiveConfig:
    """Return the archive file with another, empty folder of objects, as where nothing is mounted."""
    other = Path(archive.config.objects).with_name("not-mounted")
    other.mkdir()
    return archive.config.model_copy(update={"objects": str(other)})


def run_archive(config: ArchiveConfig) -> None:
    with StrictCluster(cluster_id=CLUSTER_ID) as source:
        client = {"alias": "east", "client": {"bootstrap.servers": source.bootstrap}}
        document = {"archive": config.archive, "source": client, "topics": {"include": [".*"]}}
        locations = {"objects": config.objects, "tables": config.tables}
        Archive(ArchiveConfig.from_document({**document, **locations}, folder=Path("/"))).run(available_now=True)


def run_restore(config: ArchiveConfig, *, is_dry_run: bool) -> None:
    with StrictCluster(cluster_id="west-id") as target:
        restore = restore_runs.config(Path(config.tables).parent, config, target.bootstrap)
        if is_dry_run:
            dry_run(restore)
        else:
            Restore(restore).run()


@pytest.mark.parametrize("has_expired", [False, True])
@pytest.mark.parametrize(
    "start",
    [
        run_archive,
        lambda config: expire(config, takes_over=True),
        lambda config: expire(config, is_dry_run=True),
        lambda config: clean(config, older_than_s=0),
        lambda config: run_restore(config, is_dry_run=True),
        lambda config: run_restore(config, is_dry_run=False),
    ],
)
def test_a_start_without_the_objects_of_the_table_writes_nothing(
    tmp_path: Path, start: Callable[[ArchiveConfig], object], *, has_expired: bool
) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"orders": {"keep": "1 day"}}))
    archive.archive({ORDERS: [batch(0, 10)]})
    if has_expired:
        expire(archive.config, takes_over=True, now_ms=lambda: NOW_MS + 999_999_999)
    config = move_away(archive)
    version = ArchiveTable.open(config.tables).recorded()
    with pytest.raises(ConfigError, match=r"does not hold the objects of the archive backup: .* and that the folder is mounted"):
        start(config)
    assert list(Path(config.objects).rglob("*")) == []
    assert ArchiveTable.open(config.tables).recorded() == version


def test_an_archive_without_data_needs_no_object(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    ArchiveOfTest(move_away(archive))
    assert ArchiveTable.open(archive.config.tables).recorded() is not None


def test_first_rows_alone_need_the_folder_of_the_archive(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.decide(*first_rows_at({ORDERS: 0}, lambda source: TargetPartition(*source)))
    with pytest.raises(ConfigError, match=r"a folder .* is not there"):
        ArchiveOfTest(move_away(archive))


def test_one_missing_object_does_not_stop_the_capture(tmp_path: Path) -> None:
    archive = written(tmp_path)
    next(Path(archive.config.objects).rglob("*.batches")).unlink()
    ArchiveOfTest(archive.config).archive({ORDERS: [batch(10, 5)]})


def test_an_archive_of_an_older_release_gets_its_first_entry(tmp_path: Path) -> None:
    archive = written(tmp_path)
    for path in Path(archive.config.objects).rglob("owners/*.json"):
        path.unlink()
    with pytest.raises(
        ConfigError, match="no run has recorded yet that the objects belong to this table: start the archive once"
    ):
        clean(archive.config, older_than_s=0)
    ArchiveOfTest(archive.config)
    assert clean(archive.config, older_than_s=0).object_count == 0
    (path,) = Path(archive.config.objects).rglob("owners/*.json")
    assert json.loads(path.read_text())["tables"] == archive.config.tables
