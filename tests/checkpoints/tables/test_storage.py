"""Which writer the tables have, by where they are and by who created them; no JVM."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from tests.support.other_user import open_folder, without_rights

from shallow_mirror.checkpoints import OffsetMap, table_properties
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP, properties_of_new_map
from shallow_mirror.checkpoints.tables import TableLocation, TableStorage
from shallow_mirror.checkpoints.tables.backends import name_in_sql
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.tables.storage import choose_writer
from shallow_mirror.checkpoints.tables.table_protocol import DeltaCommitError
from shallow_mirror.errors import ConfigError, StoreUnreachableError


@pytest.mark.parametrize("tables", ["catalog:main.mirrors", "dbfs:/mirrors/m", "/Volumes/main/mirrors/m"])
def test_what_only_spark_can_write_is_written_by_spark(tables: str) -> None:
    assert choose_writer(tables, "auto") == "spark"


def test_tables_that_are_not_there_yet_are_written_by_deltalake(tmp_path: Path) -> None:
    assert choose_writer(str(tmp_path), "auto") == "deltalake"
    assert choose_writer(str(tmp_path), "spark") == "spark"


@pytest.mark.parametrize("name", ["deltalake", "spark"])
def test_auto_continues_with_the_writer_that_created_the_tables(tmp_path: Path, name: str) -> None:
    DeltalakeWriter(str(tmp_path / "offset_map")).create(properties_of_new_map(table_properties("m", "S", "T", name)))
    assert choose_writer(str(tmp_path), "auto") == name


def test_tables_in_a_folder_are_read_without_spark_and_those_in_a_catalog_are_not() -> None:
    assert [TableLocation(root).is_read_by_spark for root in ("/data/m", "s3://b/m", "/Volumes/a/b", "catalog:a.b")] == [
        False,
        False,
        False,
        True,
    ]
    with pytest.raises(ConfigError, match=r"only Spark can access the tables in catalog:main\.mirrors"):
        OffsetMap.open("catalog:main.mirrors")


def test_names_in_sql_are_quoted() -> None:
    assert name_in_sql("catalog:main.mirrors", "runs") == "`main`.`mirrors`.`runs`"
    assert name_in_sql("/data/a`b", "runs") == "delta.`/data/a``b/runs`"


def test_tables_that_cannot_be_made_or_written_are_named_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, kind in ((tmp_path / "file" / "tables", NotADirectoryError), (Path("/proc/x/y"), FileNotFoundError)):
        with pytest.raises(kind) as caught:
            TableStorage(str(folder)).require_access()
        assert caught.value.filename == str(folder)
    TableStorage(str(tmp_path / "new" / "tables")).require_access()
    TableStorage("s3://bucket/tables").require_access()
    TableStorage(str(tmp_path / "file" / "tables"), writer="spark").require_access()
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("is_new", [True, False])
def test_tables_that_this_user_may_not_write_are_no_access(is_new: bool) -> None:
    with open_folder() as folder:
        tables = folder / "tables"
        folder.chmod(0o755 if is_new else 0o777)
        if not is_new:
            tables.mkdir(mode=0o555)
        folder.chmod(0o555)
        with without_rights(), pytest.raises(PermissionError) as caught:
            TableStorage(str(tables)).require_access()
        assert caught.value.filename == str(tables)
        folder.chmod(0o755)


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_a_folder_on_a_full_or_read_only_file_system_is_left_to_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    TableStorage(str(tmp_path)).require_access()
    with pytest.raises(OSError, match=os.strerror(code)):
        TableStorage(str(tmp_path / "new")).require_access()


@pytest.mark.parametrize("locked", ["tables", "tables/offset_map", "tables/offset_map/_delta_log"])
def test_tables_that_this_user_may_not_read_are_not_taken_for_tables_that_are_not_there(locked: str) -> None:
    with open_folder() as folder:
        tables = folder / "tables"
        DeltalakeWriter(str(tables / "offset_map")).create(properties_of_new_map(table_properties("m", "S", "T", "deltalake")))
        (folder / locked).chmod(0)
        with without_rights(), pytest.raises(PermissionError) as caught:
            OffsetMap.open(str(tables))
        (folder / locked).chmod(0o755)
        assert caught.value.filename == str(tables / "offset_map" / "_delta_log")
        OffsetMap.open(str(tables))


def test_a_table_that_this_user_may_not_write_is_an_error_with_a_remedy() -> None:
    with open_folder() as folder:
        tables = folder / "tables"
        writer = DeltalakeWriter(str(tables / "offset_map"))
        writer.create(properties_of_new_map(table_properties("m", "S", "T", "deltalake")))
        Controls.open(str(tables)).add("pause", ["orders"])
        snapshot = writer.snapshot()
        denied = "Permission denied. Remedy: grant this user access to the folder"
        with without_rights():
            with pytest.raises(DeltaCommitError, match=denied):
                writer.append(snapshot, OFFSET_MAP.empty_table(), 1, {})
            with pytest.raises(StoreUnreachableError, match=f"controls: the store refuses to append rows: {denied}"):
                Controls.open(str(tables)).add("resume", ["orders"])
            with pytest.raises(ConfigError, match=denied):
                DeltalakeWriter(str(folder / "new" / "offset_map")).create({})
