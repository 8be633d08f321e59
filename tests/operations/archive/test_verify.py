"""Verification and cleaning of an archive in a folder, with real objects and a real table."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from tests.support.archives import ORDERS, ArchiveOfTest, archive_config, object_files, replace_files
from tests.support.record_batches import batch, marker
from typer.testing import CliRunner

from shallow_mirror.archive_format.object_footer import TRAILER
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import ArchiveTable, archive_table
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.cli import app
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError, StoreUnreachableError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive import (
    clean as archive_clean,
    object_check as archive_object_check,
    verify as archive_verify,
)
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.findings import FindingKind
from shallow_mirror.operations.archive.objects import Orphan, find_orphans
from shallow_mirror.operations.archive.verify import ArchiveVerification, ProgressLines, verify_archive
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire import crc32c

pytestmark = pytest.mark.thorough

SECOND = SourcePartition("orders", ORDERS.topic_id, 1)


def written(folder: Path) -> ArchiveOfTest:
    archive = ArchiveOfTest(archive_config(folder))
    archive.archive({ORDERS: [batch(0, 10), marker(10, 0, 7)], SECOND: [batch(3, 5)]}, positions={SECOND: 3})
    archive.archive({ORDERS: [batch(15, 5)]})
    archive.archive({SECOND: [batch(8, 2)]})
    return archive


def kinds(report: ArchiveVerification) -> dict[FindingKind, int]:
    return report.findings.counts


@pytest.mark.parametrize("is_deep", [False, True])
def test_an_archive_that_nothing_happened_to_is_equal(tmp_path: Path, is_deep: bool) -> None:
    archive = written(tmp_path)
    report = verify_archive(archive.config, is_deep=is_deep)
    assert report.is_equal
    assert (report.row_count, report.object_count, kinds(report)) == (4, 3, {})
    size = len(batch(0, 10)) + len(marker(10, 0, 7)) + len(batch(3, 5)) + len(batch(15, 5)) + len(batch(8, 2))
    assert report.size_bytes == size
    assert report.sentences() == [
        f"archive backup: 4 rows, 3 objects, {size:,} bytes verified: every object is what its rows say"
    ]


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_missing_object_is_named_and_the_others_are_verified(tmp_path: Path, is_deep: bool) -> None:
    config = written(tmp_path).config
    first, *_ = object_files(config)
    first.unlink()
    report = verify_archive(config, is_deep=is_deep)
    assert not report.is_equal
    assert (kinds(report), report.object_count) == ({FindingKind.MISSING: 1}, 3)
    (found,) = report.findings.named[FindingKind.MISSING]
    assert found.object_name == first.relative_to(config.objects).as_posix()
    assert found.detail == "the object does not exist; it has offsets 0 to 10 of orders-0, offsets 3 to 7 of orders-1"


def test_one_changed_byte_damages_the_row_that_has_it_and_no_other(tmp_path: Path) -> None:
    config = written(tmp_path).config
    path = object_files(config)[0]
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    (found,) = verify_archive(config).findings.named[FindingKind.DAMAGED]
    assert found.detail == "offsets 0 to 10 of orders-0: the checksum of its bytes from offset 0 does not match"
    (found,) = verify_archive(config, is_deep=True).findings.named[FindingKind.DAMAGED]
    assert found.detail == "offsets 0 to 10 of orders-0: the batch at offset 0 does not match its own checksum"


def test_a_cut_object_is_damaged(tmp_path: Path) -> None:
    config = written(tmp_path).config
    path = object_files(config)[1]
    path.write_bytes(path.read_bytes()[:50])
    (found,) = verify_archive(config).findings.named[FindingKind.DAMAGED]
    assert found.detail == f"offsets 11 to 19 of orders-0: the object has 50 bytes, the row ends at {len(batch(15, 5))}"


def test_a_damaged_footer_is_found_by_deep_only(tmp_path: Path) -> None:
    config = written(tmp_path).config
    path = object_files(config)[0]
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    assert verify_archive(config).is_equal
    (found,) = verify_archive(config, is_deep=True).findings.named[FindingKind.DAMAGED]
    assert found.detail == "the checksum of its footer does not match"


def test_an_object_under_the_name_of_another_one_is_found(tmp_path: Path) -> None:
    config = written(tmp_path).config
    first, second, _ = object_files(config)
    first.write_bytes(second.read_bytes())
    assert kinds(verify_archive(config)) == {FindingKind.DAMAGED: 2}
    assert kinds(verify_archive(config, is_deep=True)) == {FindingKind.DAMAGED: 3}


def test_an_object_that_holds_more_than_its_rows_say_is_found_by_deep_only(tmp_path: Path) -> None:
    config = written(tmp_path).config
    path = object_files(config)[1]
    content, size = path.read_bytes(), len(batch(15, 5))
    path.write_bytes(content[:size] + b"more" + content[size:])
    assert verify_archive(config).is_equal
    (found,) = verify_archive(config, is_deep=True).findings.named[FindingKind.DAMAGED]
    assert found.detail == f"it has {len(content) + 4:,} bytes, {len(content):,} by its footer"


def test_an_object_of_another_try_under_the_same_name_is_found_by_deep(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    (of_other_try,) = archive.write({ORDERS: [batch(0, 10)]})
    (row,) = archive.archive({ORDERS: [batch(0, 10)]})
    assert row.stored is not None
    assert of_other_try.stored is not None
    folder = Path(archive.config.objects)
    (folder / row.stored.object_name).write_bytes((folder / of_other_try.stored.object_name).read_bytes())
    assert verify_archive(archive.config).findings.counts == {FindingKind.ORPHAN: 1}
    (found,) = verify_archive(archive.config, is_deep=True).findings.named[FindingKind.DAMAGED]
    assert (found.object_name, "it is another object by its footer" in found.detail) == (row.stored.object_name, True)


def test_a_row_with_other_checksums_than_runs_is_damaged(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(0, 10)]})
    (row,) = ArchiveTable.open(archive.config.tables).rows()
    assert row.stored is not None
    for crcs, problem in (
        ((1, 2), "it has 2 checksums for 1 runs"),
        ((1,), "the checksum of its bytes from offset 0 does not match"),
    ):
        wrong = replace(row, row=replace(row.row, stored=replace(row.stored, run_crc32c=crcs)))
        (found,) = archive_object_check.check_object(archive.store, row.stored.object_name, [wrong], is_deep=False)
        assert found.detail == f"offsets 0 to 9 of orders-0: {problem}"


def test_batches_that_do_not_rise_are_found_by_deep_only(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(5, 5), batch(0, 10)]}, positions={})
    assert verify_archive(archive.config).is_equal
    (found,) = verify_archive(archive.config, is_deep=True).findings.named[FindingKind.DAMAGED]
    assert "do not rise, or reach beyond it" in found.detail


def _row(start: int, end: int) -> DecidedSegment:
    target = TargetPartition(*ORDERS)
    return DecidedSegment(Segment(source=ORDERS, source_start=start, source_end=end, kind=SegmentKind.GAP, target=target), None)


def test_holes_and_overlaps_of_rows_are_named(tmp_path: Path) -> None:
    archive = written(tmp_path)
    archive.owner._positions = {}  # as if somebody else had written: this owner refuses to
    archive.decide(_row(25, 30))
    archive.owner._positions = {}
    archive.decide(_row(28, 35))
    findings = verify_archive(archive.config).findings
    assert [found.detail for found in findings.named[FindingKind.HOLE]] == ["offsets 20 to 24 of orders-0 are in no row"]
    assert [found.detail for found in findings.named[FindingKind.OVERLAP]] == ["offsets 28 to 29 of orders-0 are in two rows"]


def test_objects_are_read_in_pieces_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(i * 10, 10, payload=bytes(700_000)) for i in range(8)], SECOND: [batch(0, 3)]})
    monkeypatch.setattr(archive_object_check, "READ_BYTES", 1_500_000)
    sizes: list[int] = []
    read = ObjectStore.read_ranges

    def recording(self: ObjectStore, name: str, ranges: list[tuple[int, int]], max_concurrency: int = 8) -> tuple[bytes, ...]:
        sizes.append(sum(size for _, size in ranges))
        return read(self, name, ranges, max_concurrency)

    monkeypatch.setattr(ObjectStore, "read_ranges", recording)
    assert verify_archive(archive.config).is_equal
    assert max(sizes) <= 1_500_000
    assert len(sizes) >= 4


def test_clean_removes_what_interrupted_runs_left_and_nothing_else(tmp_path: Path) -> None:
    archive = written(tmp_path)
    orphans = {row.stored.object_name for _ in range(2) for row in archive.write({ORDERS: [batch(20, 3)]}) if row.stored}
    old, new = (f"{archive.owner.map_id}/00000001/00000000{n}-0000-00-0123abcd.batches" for n in ("04", "98"))
    for name in (old, new):
        archive.store.writer(name).write(b"half an object")  # never closed: its process was killed
    foreign = Path(archive.config.objects, "other/00000001/0000000002-0000-00-0123abcd.batches")
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"another archive's")

    # What was written for the next decision of this run may still be decided.
    (found,) = _cleaned(archive.config)
    assert (found.is_unfinished, old.rpartition("/")[2] in found.info.name) == (True, True)

    next_run = ArchiveOfTest(archive.config)
    orphans |= {row.stored.object_name for row in next_run.write({ORDERS: [batch(20, 3)]}) if row.stored}
    report = verify_archive(archive.config)
    assert (report.is_equal, kinds(report)) == (True, {FindingKind.ORPHAN: 3})
    assert clean(archive.config, is_dry_run=True, older_than_s=0).object_count == 0  # no row has offset 20 yet: an only copy
    next_run.archive({ORDERS: [batch(20, 3)]})
    (in_progress,) = next_run.write({ORDERS: [batch(23, 3)]})
    assert clean(archive.config, is_dry_run=True).object_count == 0  # too young
    assert clean(archive.config, is_dry_run=True, older_than_s=0).object_count == 3
    found_names = {orphan.info.name: orphan.is_unfinished for orphan in _cleaned(archive.config)}
    assert {name for name, is_unfinished in found_names.items() if not is_unfinished} == orphans
    assert [new.rpartition("/")[2] in name for name, is_unfinished in found_names.items() if is_unfinished] == [True]

    assert in_progress.stored is not None
    assert archive.store.size(in_progress.stored.object_name) is not None
    assert foreign.read_bytes() == b"another archive's"
    report = verify_archive(archive.config, is_deep=True)
    assert (report.is_equal, kinds(report), report.object_count) == (True, {}, 4)


def test_an_object_with_data_that_rows_have_as_a_gap_is_kept(tmp_path: Path) -> None:
    archive = written(tmp_path)
    (orphan,) = archive.write({ORDERS: [batch(20, 3)]})
    expired = Segment(source=ORDERS, source_start=20, source_end=30, kind=SegmentKind.EXPIRED, target=TargetPartition(*ORDERS))
    ArchiveOfTest(archive.config).decide(DecidedSegment(expired, None))
    cleaned = clean(archive.config, older_than_s=0)
    assert orphan.stored is not None
    name = orphan.stored.object_name
    assert (cleaned.object_count, cleaned.kept) == (0, {name: f"{name} has offset 20 of orders-0, and no row has"})
    assert cleaned.sentences()[1].startswith("kept 1 object that may be the only copy: remove them yourself")
    assert archive.store.size(name) is not None


def test_what_a_row_names_since_it_was_listed_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)
    rows = archive.write({ORDERS: [batch(20, 3)]})
    ArchiveOfTest(archive.config).archive({ORDERS: [batch(20, 3)]})
    refresh = ArchiveTable.refresh

    def name_it(self: ArchiveTable) -> None:
        """Replace the object of the row of these offsets, as no run does."""
        refresh(self)
        if rows:
            table = DeltaTable(f"{archive.config.tables}/archive_segments")
            (stored,) = (row.stored for row in [rows.pop()] if row.stored is not None)
            table.update(predicate="source_start = 20", new_values={"object_name": stored.object_name})
            refresh(self)

    def listed_first(table: ArchiveTable, store: ObjectStore) -> Iterator[Orphan]:
        yield from list(find_orphans(table, store))
        monkeypatch.setattr(ArchiveTable, "refresh", name_it)

    monkeypatch.setattr(archive_clean, "find_orphans", listed_first)
    assert clean(archive.config, older_than_s=0).object_count == 0


def _cleaned(config: ArchiveConfig) -> list[Orphan]:
    found: list[Orphan] = []
    clean(config, on_orphan=found.append, older_than_s=0)
    return found


def test_objects_that_expire_while_they_are_verified_are_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)
    size, expired = ObjectStore.size, [row.stored for row in ArchiveTable.open(archive.config.tables).segments()][:1]

    def expiring(self: ObjectStore, name: str) -> int | None:
        while expired:
            stored = expired.pop()
            assert stored is not None
            archive.owner.mark([stored.object_name], SegmentState.DELETE_SEGMENT_STARTED, (1, 1))
            archive.store.delete([stored.object_name])
        return size(self, name)

    monkeypatch.setattr(ObjectStore, "size", expiring)
    monkeypatch.setattr(archive_verify, "OBJECTS_AT_ONCE", 1)
    report = verify_archive(archive.config)
    assert (report.is_equal, report.findings.counts) == (True, {})
    assert (expired, len(object_files(archive.config))) == ([], 2)


def test_a_table_that_a_running_archive_compacts_meanwhile_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = written(tmp_path)
    monkeypatch.setattr(archive_table, "_READ_ROWS", 1)
    compact = [replace_files]

    def on_progress(_report: ArchiveVerification) -> None:
        while compact:
            compact.pop()(archive.config)

    report = verify_archive(archive.config, on_progress=on_progress)
    assert (report.is_equal, report.row_count, compact) == (True, 4, [])


def test_a_row_that_names_an_object_of_another_archive_is_named(tmp_path: Path) -> None:
    archive = written(tmp_path)
    (row,) = archive.write({ORDERS: [batch(20, 3)]})
    assert row.stored is not None
    foreign = row.stored.object_name.replace(archive.owner.map_id, "other")
    archive.decide(replace(row, stored=replace(row.stored, object_name=foreign)))
    (found,) = verify_archive(archive.config).findings.named[FindingKind.DAMAGED]
    assert found.object_name == foreign
    assert "it is no object of the archive" in found.detail


def test_an_object_of_a_newer_release_needs_that_release(tmp_path: Path) -> None:
    config = written(tmp_path).config
    path = object_files(config)[0]
    content = bytearray(path.read_bytes())
    footer_bytes = int.from_bytes(content[-12:-8], "big")
    footer = bytes(content[-16 - footer_bytes : -16]).replace(b'"format":1', b'"format":2')
    path.write_bytes(bytes(content[: -16 - footer_bytes]) + footer + TRAILER.pack(crc32c(footer), len(footer), b"SMARCH", 2))
    assert verify_archive(config).is_equal
    with pytest.raises(ConfigError, match="Use a newer shallow-mirror"):
        verify_archive(config, is_deep=True)


def test_progress_is_a_line_every_few_seconds(tmp_path: Path) -> None:
    archive, now, file = written(tmp_path), [0.0], io.StringIO()
    lines = ProgressLines(file, clock=lambda: now[0])
    verify_archive(archive.config, on_progress=lines)
    assert file.getvalue() == ""
    now[0] = 6.0
    report = verify_archive(archive.config, on_progress=lines)
    assert file.getvalue() == f"verify: 3 objects, {report.size_bytes:,} bytes so far; 0 findings\n"


def archive_file(folder: Path) -> Path:
    path = folder / "archive.yaml"
    config = archive_config(folder)
    document = {
        "archive": config.archive,
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "topics": {"include": [".*"]},
        "objects": "objects",
        "tables": "tables",
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_commands_print_and_end_with_their_exit_codes(tmp_path: Path) -> None:
    archive = written(tmp_path)
    file = archive_file(tmp_path)
    result = CliRunner().invoke(app, ["archive", "verify", str(file), "--deep", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["equal"] is True
    object_files(archive.config)[0].unlink()
    result = CliRunner().invoke(app, ["archive", "verify", str(file)])
    assert result.exit_code == 1
    assert "missing: 1 (in the tables, and not in the store)" in result.stdout
    result = CliRunner().invoke(app, ["archive", "clean", str(file)])
    assert (result.exit_code, result.stdout) == (0, "removed: 0 objects and 0 unfinished files, 0 bytes\n")


COMMANDS: list[Callable[[ArchiveConfig], object]] = [verify_archive, clean]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_table_that_is_not_there_is_a_config_error(tmp_path: Path, command: Callable[[ArchiveConfig], object]) -> None:
    with pytest.raises(ConfigError, match=r"run `shallow-mirror archive run` once, or check `tables`"):
        command(archive_config(tmp_path))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_of_another_archive_is_refused(tmp_path: Path, command: Callable[[ArchiveConfig], object]) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError, match="use another location for `tables`"):
        command(archive_config(tmp_path, archive="other"))


def test_objects_of_another_archive_are_named_as_such(tmp_path: Path) -> None:
    config = written(tmp_path).config
    (tmp_path / "elsewhere").mkdir()
    written(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"and none of .*: check `objects` and `tables`"):
        verify_archive(archive_config(tmp_path, objects=str(tmp_path / "elsewhere" / "objects"), tables=config.tables))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_store_that_does_not_answer_is_named(
    tmp_path: Path, command: Callable[[ArchiveConfig], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    config = archive_config(tmp_path, objects="s3://bucket/objects", storage={"options": options})
    with pytest.raises(StoreUnreachableError, match=r"s3://bucket/objects.*Remedy"):
        command(config)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, command: Callable[[ArchiveConfig], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)

    def refuse(*_: object) -> None:
        raise ConfigError("objects: refused. Remedy: check the credentials")

    monkeypatch.setattr(ObjectStore, "size", refuse)
    monkeypatch.setattr(ObjectStore, "list", refuse)
    with pytest.raises(ConfigError, match="check the credentials"):
        command(archive_config(tmp_path))
