"""Bad input of archives and restores, as a user meets it: one line with the remedy, an exit code, and nothing lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable
from tests.fakes.strict_broker import StrictCluster
from tests.faults import storage_faults
from tests.support import restore_runs
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config, archive_document
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import TopicDescription
from shallow_mirror.checkpoints.rows.schema import PROPERTY_SCHEMA_VERSION
from shallow_mirror.cli import main
from shallow_mirror.errors import StoreUnreachableError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.expire import expire

pytestmark = pytest.mark.thorough

OTHER = ORDERS._replace(partition=1)
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Ended:
    """`error`: what stderr has."""

    code: int
    out: str
    error: str

    @property
    def problem(self) -> str:
        """Return the one line of the error; the log has lines with a level."""
        (line,) = [line for line in self.error.splitlines() if re.match(r"\w+Error: ", line)]
        return line


class Commands:
    """An archive of two partitions, three decisions, and files for the command line."""

    def __init__(self, folder: Path, target: StrictCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.target, self._capsys = folder, target, capsys
        retention = {"orders": {"keep": "7 days"}}
        self.archive = ArchiveOfTest(archive_config(folder, retention=retention))
        self.archive.archive(
            {ORDERS: [batch(0, 10, timestamp=1_000)], OTHER: [batch(100, 5, timestamp=3_500)]}, positions={OTHER: 100}
        )
        self.archive.now_ms += 5 * DAY_MS
        self.archive.archive({ORDERS: [batch(10, 10, timestamp=2_000)]})
        self.archive.archive({ORDERS: [batch(20, 10, timestamp=3_000)]})
        self._write("archive.yaml", archive_document(retention=retention))
        self.archive.describe(TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=2, configs={}))

    def __call__(self, *arguments: str) -> Ended:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, error = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        assert "Traceback" not in error
        return Ended(ended.value.code, out, error)

    def operate(self, command: str, *options: str) -> Ended:
        return self("archive", command, str(self.folder / "archive.yaml"), *options)

    def plan_restore(self, *options: str, **settings: Any) -> Ended:
        self._write("restore.yaml", restore_runs.document(self.archive.config, self.target.bootstrap, **settings))
        return self("restore", str(self.folder / "restore.yaml"), "--dry-run", *options)

    def objects(self) -> list[Path]:
        return sorted((self.folder / "objects").rglob("*.batches"))

    def require_whole(self) -> None:
        """Nothing is lost, and the commands work."""
        assert self.operate("verify", "--deep").code == 0
        assert self.plan_restore().code == 0

    def _write(self, name: str, document: dict[str, Any]) -> None:
        (self.folder / name).write_text(yaml.safe_dump(document), encoding="utf-8")


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    with StrictCluster(cluster_id="west-id") as target:
        yield Commands(tmp_path, target, capsys)


def test_a_missing_object_is_named_by_every_reader_until_it_is_back(commands: Commands) -> None:
    first = commands.objects()[0]
    content = first.read_bytes()
    first.unlink()
    verified = commands.operate("verify")
    assert (verified.code, first.name in verified.out) == (1, True)
    planned = commands.plan_restore()
    assert planned.code == 1
    assert f"{first.name} is missing" in planned.out
    assert "restore it from a copy or a former version" in planned.out
    first.write_bytes(content)
    commands.require_whole()


def test_a_damaged_object_is_named_until_it_is_replaced(commands: Commands) -> None:
    first = commands.objects()[0]
    content = first.read_bytes()
    first.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    verified = commands.operate("verify")
    assert verified.code == 1
    assert f"{first.name}: offsets 0 to 9 of orders-0: the checksum of its bytes from offset 0 does not match" in verified.out
    first.write_bytes(content)
    commands.require_whole()


def test_objects_of_another_archive_are_no_objects_of_this_one(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "objects").rename(tmp_path / "own")
    (tmp_path / "other").mkdir()
    other = ArchiveOfTest(archive_config(tmp_path / "other"))
    other.archive({ORDERS: [batch(0, 1)]})
    (tmp_path / "other" / "objects").rename(tmp_path / "objects")
    verified = commands.operate("verify")
    assert verified.code == 2
    assert "check `objects` and `tables`" in verified.problem
    cleaned = commands.operate("clean")
    assert cleaned.code == 2
    assert "does not hold the objects of the archive" in cleaned.problem
    (tmp_path / "objects").rename(tmp_path / "other" / "objects")
    (tmp_path / "own").rename(tmp_path / "objects")
    commands.require_whole()


def test_rows_that_another_application_removed_are_a_hole_until_the_table_is_restored(commands: Commands) -> None:
    table = DeltaTable(f"{commands.archive.config.tables}/archive_segments")
    good = table.version()
    table.delete("source_start = 10")
    verified = commands.operate("verify")
    assert (verified.code, "hole: 1" in verified.out) == (1, True)
    planned = commands.plan_restore()
    assert planned.code == 2
    assert "orders-0: the archive has no offsets from 10 to 19; restore up to 10 with until.offsets" in planned.problem
    assert commands.plan_restore(until={"offsets": {"orders": {0: 10, 1: 105}}}).code == 0
    expired = commands.operate("expire", "--take-over")
    assert expired.code == 1
    assert "another application removed or added rows" in expired.problem
    assert "RESTORE TABLE" in expired.problem
    assert len(commands.objects()) == 3
    table = DeltaTable(f"{commands.archive.config.tables}/archive_segments")
    table.restore(good)
    commands.require_whole()
    assert commands.operate("expire", "--take-over").code == 0


def test_a_damaged_table_is_no_empty_archive(commands: Commands) -> None:
    log = Path(commands.archive.config.tables, "archive_segments", "_delta_log")
    contents = {commit: commit.read_bytes() for commit in log.glob("*.json")}
    for commit in contents:
        commit.write_text("{")
    for ended in (commands.operate("verify"), commands.operate("clean"), commands.plan_restore()):
        assert ended.code == 1
        assert "is not a readable Delta table" in ended.problem
    for commit, content in contents.items():
        commit.write_bytes(content)
    commands.require_whole()


def test_a_table_of_a_newer_release_needs_that_release(commands: Commands) -> None:
    table = DeltaTable(f"{commands.archive.config.tables}/archive_segments")
    table.alter.set_table_properties({PROPERTY_SCHEMA_VERSION: "99"}, raise_if_not_exists=False)
    operated = [commands.operate(command) for command in ("verify", "clean", "expire", "status")]
    for ended in (*operated, commands.plan_restore()):
        assert ended.code == 2
        assert "the table of archived segments has schema version 99" in ended.problem
        assert "use a newer one" in ended.problem


def test_a_restore_into_a_topic_that_holds_records_is_refused(commands: Commands) -> None:
    commands.target.create_topic("east.orders", 2)
    commands.target.seed(("east.orders", 1), batch(0, 1))
    planned = commands.plan_restore()
    assert planned.code == 1
    assert "target topic east.orders (for orders) holds records that this restore did not write" in planned.out
    assert commands.plan_restore(topics={"target_name": "{source}.{topic}.back"}).code == 0


def test_a_time_before_every_record_is_refused(commands: Commands) -> None:
    planned = commands.plan_restore("--until", "1970-01-01T00:00:00.500Z", topics={"exclude": ["payments"]})
    assert planned.code == 2
    assert "orders-1: the archive began after the cut; it has offsets 100 to 105" in planned.problem
    commands.archive.archive(
        {ORDERS._replace(topic="payments", topic_id="paypaypaypaypaypaypayA"): [batch(0, 1, timestamp=9_000)]}
    )
    planned = commands.plan_restore("--until", "1970-01-01T00:00:00.500Z", topics={"include": ["payments"]})
    assert planned.code == 2
    assert "is before every record of the archive: the oldest is of 1970-01-01T00:00:09.000+00:00 (payments-0)" in planned.problem


def test_a_cut_in_front_of_what_retention_kept_is_refused_and_a_later_one_restores_the_rest(commands: Commands) -> None:
    expire(commands.archive.config, takes_over=True, now_ms=lambda: NOW_MS + 8 * DAY_MS)
    excluded = {"offsets": {"orders": {0: 5, 1: 105}}}
    planned = commands.plan_restore(until=excluded)
    assert planned.code == 2
    assert "until.offsets: orders-0: 5 is not in the archive, which has 10 to 30" in planned.problem
    planned = commands.plan_restore("--at-decision", "1")
    assert planned.code == 2
    assert "orders-0: what was archived before it has expired; it has offsets 10 to 30" in planned.error
    planned = commands.plan_restore("--until", "1970-01-01T00:00:01.500Z")
    assert planned.code == 2
    assert "orders-0: what was archived before it has expired; it has offsets 10 to 30, with records from" in planned.error
    planned = commands.plan_restore("--until", "1970-01-01T00:00:02.500Z", "--json")
    assert planned.code == 0
    assert [(each["position"], each["end"]) for each in json.loads(planned.out)["partitions"]] == [(10, 20), (105, 105)]


def test_topics_that_the_archive_does_not_have_are_named(commands: Commands) -> None:
    planned = commands.plan_restore(topics={"include": ["paymnts", "refunds"]})
    assert planned.code == 2
    assert "the archive has no topic that matches paymnts, refunds and is not excluded" in planned.problem
    assert "its topics up to decision 3 are: orders" in planned.problem
    planned = commands.plan_restore(topics={"include": ["orders", "refunds"]})
    assert planned.code == 2
    assert "the archive has no topic refunds (correct the name, or remove it); its topics up to decision 3 are" in planned.problem
    planned = commands.plan_restore(topics={"include": ["orders", "refund.*"]})
    assert planned.code == 0
    assert "topics.include: the archive has no topic that matches refund.*: correct or remove the pattern" in planned.out
    planned = commands.plan_restore(until={"offsets": {"refunds": {0: 1}}})
    assert planned.code == 2
    assert "the archive has no partition refunds-0" in planned.problem


@pytest.mark.skipif(not storage_faults.may_mount(), reason="mounts file systems, which needs root")
def test_a_full_disk_is_waited_for_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with storage_faults.small_disk(folder, size_bytes=1 << 20):
        store = ObjectStore.open(str(folder / "objects"))
        name = "archive/0000000001/0000000001-0000-00-0123abcd.batches"
        writer = store.writer(name)
        with pytest.raises(StoreUnreachableError, match=r"No space left on device\. Remedy: "):
            writer.write(b"x" * (2 << 20))
        writer.abort()
        assert list(store.list()) == []
        assert list(store.list_unfinished()) == []
        with store.writer(name) as again:
            again.write(b"x" * 1000)
            again.close()
        assert store.size(name) == 1000
