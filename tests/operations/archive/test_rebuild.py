"""The table of an archive, rebuilt from the footers of its objects."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.strict_broker import StrictCluster
from tests.support import restore_runs
from tests.support.archives import CLUSTER_ID, NOW_MS, ORDERS, PAYMENTS, ArchiveOfTest, archive_config, object_files
from tests.support.record_batches import batch
from typer.testing import CliRunner

from shallow_mirror.checkpoints import DecidedSegment, first_rows_at
from shallow_mirror.checkpoints.ledger import EVERY_STATE, ArchivedTopics, ArchiveTable, TopicDescription
from shallow_mirror.checkpoints.rows import ArchiveRow, SegmentState
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.cli import app
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ArchiveFormatError, ConfigError, FencedError
from shallow_mirror.operations.archive.adopt import adopt
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.operations.restore.dry_run import dry_run
from shallow_mirror.sinks.archive import TopicObjects
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition

pytestmark = pytest.mark.thorough

SECOND = SourcePartition("orders", ORDERS.topic_id, 1)
THIRD = SourcePartition("orders", ORDERS.topic_id, 2)


DAY_MS = 86_400_000


def _gap(start: int, end: int) -> Segment:
    return Segment(source=THIRD, source_start=start, source_end=end, kind=SegmentKind.GAP, target=TargetPartition(*THIRD))


def written(folder: Path) -> ArchiveOfTest:
    archive = ArchiveOfTest(archive_config(folder))
    archive.archive({ORDERS: [batch(0, 10)], SECOND: [batch(3, 5)]}, positions={SECOND: 3}, gaps=[_gap(0, 4)])
    archive.archive({ORDERS: [batch(10, 5)]})
    archive.archive({ORDERS: [batch(15, 5)], SECOND: [batch(8, 2)]})
    return archive


def new_tables(config: ArchiveConfig) -> ArchiveConfig:
    return config.model_copy(update={"tables": f"{config.tables}-new", "checkpoint": f"{config.tables}-new/_spark"})


def rows_of(config: ArchiveConfig) -> Sequence[ArchiveRow]:
    return [replace(row, decided_at_ms=0) for row in ArchiveTable.open(config.tables).segments()]


def test_the_rebuilt_table_has_the_rows_of_the_lost_one_and_the_capture_continues(tmp_path: Path) -> None:
    archive = written(tmp_path)
    config, expected, positions = archive.config, rows_of(archive.config), archive.owner.positions()
    shutil.rmtree(config.tables)
    new = new_tables(config)
    rebuilt = rebuild(config, new.tables)
    assert (rebuilt.row_count, rebuilt.object_count, rebuilt.uncommitted, rebuilt.damaged) == (6, 3, [], [])
    assert rows_of(new) == expected
    table = ArchiveTable.open(new.tables, archive="backup")
    assert (table.archive_id, table.source_cluster_id, table.positions()) == (archive.owner.map_id, CLUSTER_ID, positions)
    assert verify_archive(new, is_deep=True).is_equal
    with pytest.raises(ConfigError, match=r"belong to the table in .*/tables \(run 1, .*shallow-mirror archive adopt FILE"):
        ArchiveOfTest(new)
    assert f"belong to the table in {new.tables} now, and to the table in {config.tables}" in adopt(new)
    following = ArchiveOfTest(new)
    assert following.owner.run_epoch > archive.owner.run_epoch
    following.archive({ORDERS: [batch(20, 1)]})
    report = verify_archive(new, is_deep=True)
    assert (report.is_equal, report.findings.counts, report.row_count) == (True, {}, 7)


def test_objects_that_were_never_committed_are_left_out_and_can_be_cleaned(tmp_path: Path) -> None:
    archive = written(tmp_path)
    (orphan, *_) = archive.write({ORDERS: [batch(20, 3)]})
    second = ArchiveOfTest(archive.config)
    second.archive({ORDERS: [batch(20, 7)]})
    expected = rows_of(archive.config)
    new = new_tables(archive.config)
    rebuilt = rebuild(archive.config, new.tables)
    assert orphan.stored is not None
    assert rebuilt.uncommitted == [orphan.stored.object_name]
    assert rows_of(new) == expected
    adopt(new)
    assert clean(new, older_than_s=0).object_count == 1
    assert verify_archive(new, is_deep=True).findings.counts == {}


def test_a_missing_object_is_a_hole_that_must_be_accepted(tmp_path: Path) -> None:
    archive = written(tmp_path)
    config, new = archive.config, new_tables(archive.config)
    object_files(config)[1].unlink()
    with pytest.raises(ConfigError) as refused:
        rebuild(config, new.tables)
    assert "offsets 10 to 14 of orders-0 are in no object, before " in str(refused.value)
    assert "1 hole: restore the missing objects, or record the holes as gaps with --accept-holes" in str(refused.value)
    assert not Path(new.tables, "archive_segments").exists()
    rebuilt = rebuild(config, new.tables, accepts_holes=True)
    assert [hole.start for hole in rebuilt.accepted_holes] == [10]
    kinds = [(row.segment.source_start, row.segment.kind) for row in rows_of(new) if row.segment.source == ORDERS]
    assert kinds == [(0, SegmentKind.DATA), (10, SegmentKind.GAP), (15, SegmentKind.DATA)]
    assert verify_archive(new, is_deep=True).is_equal


@pytest.mark.parametrize("orphan_batches", [None, [(0, 10), (10, 5)], [(0, 6)], [(0, 10)]])
def test_what_expired_stays_expired_and_nothing_else_of_its_decision_is_left_out(
    tmp_path: Path, orphan_batches: list[tuple[int, int]] | None
) -> None:
    """Another try of the slot whose committed object has expired is left in the store."""
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"payments": {"keep": "1 day"}}))
    of_class: dict[str, Any] = {"retention_class": 1, "pattern": "payments"}
    if orphan_batches is not None:
        archive.write({PAYMENTS: [batch(*of_batch) for of_batch in orphan_batches]}, **of_class)
    rows = archive.write({PAYMENTS: [batch(0, 10)]}, **of_class) + archive.write({ORDERS: [batch(0, 7)]}, slot=1)
    archive.owner.decide(rows, highest_slot=-1)
    archive.owner.settle()
    archive.now_ms += 2 * DAY_MS
    archive.archive({PAYMENTS: [batch(10, 5)]}, **of_class)
    config, new = archive.config, new_tables(archive.config)
    assert expire(config, takes_over=True, now_ms=lambda: archive.now_ms).object_count == 1

    def states(of_config: ArchiveConfig) -> list[tuple[str, int, int, SegmentState]]:
        segments = ArchiveTable.open(of_config.tables).segments(states=EVERY_STATE)
        return [(row.segment.source.topic, row.segment.source_start, row.segment.source_end, row.state) for row in segments]

    expected = states(config)
    shutil.rmtree(config.tables)
    rebuilt = rebuild(config, new.tables)
    assert (len(rebuilt.uncommitted), rebuilt.unproven) == (0 if orphan_batches is None else 1, [])
    assert states(new) == expected
    adopt(new)
    assert clean(new, older_than_s=0).object_count == len(rebuilt.uncommitted)
    assert verify_archive(new, is_deep=True).findings.counts == {}
    assert [row.segment.source for row in rows_of(new)] == [ORDERS, PAYMENTS]


def test_without_copies_of_rows_an_only_copy_is_used_and_named(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.write({PAYMENTS: [batch(0, 12)]})
    committed = archive.write({PAYMENTS: [batch(0, 10)]})
    orders = archive.write({ORDERS: [batch(0, 7)]}, slot=1)
    archive.owner.decide([*committed, *orders], highest_slot=-1)
    archive.owner.settle()
    archive.archive({PAYMENTS: [batch(10, 5)]})
    assert committed[0].stored is not None
    assert orders[0].stored is not None
    archive.store.delete([committed[0].stored.object_name])  # a release that copied no rows expired it
    new = new_tables(archive.config)
    rebuilt = rebuild(archive.config, new.tables)
    assert (len(rebuilt.uncommitted), rebuilt.unproven) == (1, [orders[0].stored.object_name])
    assert [(row.segment.source, row.segment.source_start) for row in rows_of(new)] == [(ORDERS, 0), (PAYMENTS, 10)]
    sentences = "\n".join(rebuilt.sentences())
    assert f"used, and nothing says whether it was committed: {orders[0].stored.object_name}" in sentences
    assert "no copies of rows are beside the objects, because an older release wrote them" in sentences


def test_rows_that_no_object_has_are_there_again(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.decide(*first_rows_at({ORDERS: 3, SECOND: 0}, lambda source: TargetPartition(*source)))
    archive.archive({ORDERS: [batch(3, 10)]})
    expired = Segment(source=ORDERS, source_start=13, source_end=50, kind=SegmentKind.EXPIRED, target=TargetPartition(*ORDERS))
    archive.decide(DecidedSegment(expired, None))
    archive.archive({ORDERS: [batch(50, 10)]})
    archive.begin_lineage(ORDERS, 40, 4)
    new = new_tables(archive.config)
    rebuilt = rebuild(archive.config, new.tables)
    assert (rebuilt.row_count, rebuilt.accepted_holes) == (6, [])
    assert rows_of(new) == rows_of(archive.config)
    assert ArchiveTable.open(new.tables).positions() == archive.owner.positions()
    assert verify_archive(new, is_deep=True).is_equal


def test_an_archive_of_which_everything_has_expired_is_rebuilt(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path, retention={".*": {"keep": "1 day"}}))
    archive.archive({ORDERS: [batch(0, 10)]})
    assert expire(archive.config, takes_over=True, now_ms=lambda: NOW_MS + 2 * DAY_MS).object_count == 1
    new = new_tables(archive.config)
    assert rebuild(archive.config, new.tables).row_count == 1
    (row,) = ArchiveTable.open(new.tables).segments(states=EVERY_STATE)
    assert (row.segment.source_end, row.state) == (10, SegmentState.DELETE_SEGMENT_FINISHED)
    table = ArchiveTable.open(new.tables)
    assert (table.source_cluster_id, table.positions()) == (CLUSTER_ID, archive.owner.positions())


def test_a_drill_beside_the_running_archive_deletes_and_writes_nothing(tmp_path: Path) -> None:
    archive = written(tmp_path)
    new = new_tables(archive.config)
    rebuild(archive.config, new.tables)
    assert verify_archive(new, is_deep=True).is_equal
    archive.archive({ORDERS: [batch(20, 10)]})
    archive = ArchiveOfTest(archive.config)
    archive.archive({ORDERS: [batch(30, 10)]})
    report = verify_archive(new)
    assert (report.is_equal, report.findings.counts) == (True, {})
    assert f"belong to the table in {archive.config.tables} (run 2, " in "\n".join(report.sentences())
    before = sorted(path.name for path in (tmp_path / "objects").rglob("*"))
    for act in (
        lambda: clean(new, older_than_s=0),
        lambda: expire(new, takes_over=True),
        lambda: expire(new, is_dry_run=True),
        lambda: ArchiveOfTest(new),
    ):
        with pytest.raises(ConfigError, match=r"not to this table\. If the other table is lost"):
            act()
    with pytest.raises(
        ConfigError, match=r"have changed since this table was made: .* has offset 20 of orders-0, and no row has"
    ):
        adopt(new)
    assert sorted(path.name for path in (tmp_path / "objects").rglob("*")) == before
    assert verify_archive(archive.config, is_deep=True).findings.counts == {}


def test_the_former_table_is_fenced_once_a_rebuilt_one_is_adopted(tmp_path: Path) -> None:
    archive = written(tmp_path)
    new = new_tables(archive.config)
    rebuild(archive.config, new.tables)
    adopt(new)
    with pytest.raises(FencedError, match=f"the table in {new.tables}"):
        archive.archive_owner.check()
    with pytest.raises(ConfigError, match=f"belong to the table in {new.tables}"):
        ArchiveOfTest(archive.config)
    with pytest.raises(ConfigError, match=f"belong to the table in {new.tables}"):
        clean(archive.config, older_than_s=0)
    assert "belong to this table already" in adopt(new)
    ArchiveOfTest(new).archive({ORDERS: [batch(20, 1)]})
    with pytest.raises(ConfigError, match="have changed since this table was made"):
        adopt(archive.config)


def test_a_damaged_footer_is_named(tmp_path: Path) -> None:
    archive = written(tmp_path)
    path = object_files(archive.config)[2]
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    rebuilt = rebuild(archive.config, new_tables(archive.config).tables)
    name = path.relative_to(archive.config.objects).as_posix()
    assert rebuilt.damaged == [f"{name}: the checksum of its footer does not match"]
    assert rebuilt.row_count == 4


def test_two_tries_of_the_last_decision_that_differ_are_refused(tmp_path: Path) -> None:
    archive = written(tmp_path)
    names = [row.stored.object_name for end in (2, 4) for row in archive.write({ORDERS: [batch(20, end)]}) if row.stored]
    with pytest.raises(ConfigError) as refused:
        rebuild(archive.config, new_tables(archive.config).tables)
    assert "one of these objects was committed, and nothing says which" in str(refused.value)
    assert all(name in str(refused.value) for name in names)


def test_a_table_is_never_overwritten(tmp_path: Path) -> None:
    archive = written(tmp_path)
    before = rows_of(archive.config)
    with pytest.raises(ConfigError, match="there is a table archive_segments already: give another location"):
        rebuild(archive.config, archive.config.tables)
    assert rows_of(archive.config) == before


def test_of_several_archives_in_a_store_one_must_be_chosen(tmp_path: Path) -> None:
    archive = written(tmp_path)
    other = ArchiveOfTest(archive_config(tmp_path, archive="other", tables="other-tables"))
    other.archive({ORDERS: [batch(0, 1)]})
    new = new_tables(archive.config)
    with pytest.raises(ConfigError, match="objects of 2 archives: choose one with --archive-id"):
        rebuild(archive.config, new.tables)
    assert rebuild(archive.config, new.tables, archive_id=archive.owner.map_id).row_count == 6
    assert verify_archive(new).is_equal


def test_a_store_without_objects_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no objects of an archive: check `objects`"):
        rebuild(archive_config(tmp_path), str(tmp_path / "new"))
    with pytest.raises(ConfigError, match="only Spark can access the tables"):
        rebuild(archive_config(tmp_path), "catalog:main.archive")


def test_the_command(tmp_path: Path) -> None:
    archive = written(tmp_path)
    file = tmp_path / "archive.yaml"
    document = {
        "archive": archive.config.archive,
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "topics": {"include": [".*"]},
        "objects": "objects",
        "tables": "tables",
    }
    file.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["archive", "verify", str(file), "--rebuild", str(tmp_path / "new"), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["rows"] == 6
    result = CliRunner().invoke(app, ["archive", "verify", str(file), "--accept-holes"])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "--accept-holes and --archive-id require --rebuild"


def test_topics_that_were_described_beside_the_objects_can_be_restored_at_once(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    stored = TopicObjects(archive.store, archive.owner.map_id)

    def describe(partitions: int, at_ms: int) -> None:
        configs = {"retention.ms": "77"}
        description = TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=partitions, configs=configs)
        stored.record([description], at_ms=at_ms)
        stored.record([description], at_ms=at_ms + 1)

    now_ms = int(time.time() * 1000)
    describe(2, now_ms - 10_000)
    archive.archive({ORDERS: [batch(0, 10)]})
    describe(3, now_ms + 10_000_000)
    assert len(list((tmp_path / "objects").rglob("topics/*.json"))) == 2
    shutil.rmtree(archive.config.tables)
    new = new_tables(archive.config)
    rebuilt = rebuild(archive.config, new.tables)
    assert rebuilt.topic_count == 1
    topics = ArchivedTopics.of(TableStorage(new.tables))
    assert topics.latest()[ORDERS.topic_id].partitions == 3
    assert topics.latest(0)[ORDERS.topic_id].partitions == 2
    assert topics.latest(0)[ORDERS.topic_id].configs == {"retention.ms": "77"}
    assert verify_archive(new, is_deep=True).findings.counts == {}
    adopt(new)
    assert clean(new, older_than_s=0).object_count == 0
    with StrictCluster(cluster_id="west-id") as target:
        report = dry_run(restore_runs.config(tmp_path, new, target.bootstrap))
    assert report.is_fine
    assert [topic.partitions for topic in report.topics] == [3]


def test_a_damaged_description_of_topics_is_named(tmp_path: Path) -> None:
    archive = written(tmp_path)
    stored = TopicObjects(archive.store, archive.owner.map_id)
    stored.record([TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=2, configs={})], at_ms=NOW_MS)
    (file,) = (tmp_path / "objects").rglob("topics/*.json")
    file.write_text("{")
    with pytest.raises(ArchiveFormatError, match="it is no description of topics"):
        rebuild(archive.config, new_tables(archive.config).tables)
