"""Whatever is wrong with the machine or its packages, a command ends in one line that says what to do."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from py4j.protocol import Py4JError
from tests.checkpoints.map_rows import data, run_of
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.commands.broken_surroundings import explaining_surroundings
from shallow_mirror.errors import ConfigError, MirrorError, SparkLostError
from shallow_mirror.types import SlotTxn


def explained(error: Exception) -> MirrorError:
    with pytest.raises(MirrorError) as caught, explaining_surroundings():
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/d/f"), MirrorError, "the disk is full .* /d/f.: free space there"),
        (OSError(errno.EROFS, "Read-only file system", "/d/f"), ConfigError, "no access to /d/f .*: grant this user access"),
        (PermissionError(errno.EACCES, "Permission denied", "/d/f"), ConfigError, "no access to /d/f"),
        (OSError("Generic error: broken"), MirrorError, "Generic error: broken: correct that"),
        (
            ModuleNotFoundError("No module named 'py4j'", name="py4j"),
            ConfigError,
            r"py4j is not installed.*shallow-mirror\[local\]",
        ),
        (
            ModuleNotFoundError("No module named 'pyspark.sql.streaming.datasource'", name="pyspark.sql.streaming.datasource"),
            ConfigError,
            r"the installed pyspark has no pyspark.sql.streaming.datasource.*shallow-mirror\[local\]",
        ),
        (
            ImportError("cannot import name 'x'", name="numpy"),
            ConfigError,
            "cannot import name 'x': a package is missing or too old",
        ),
        (
            Py4JError("An error occurred while calling o1.start.\n: java.lang.IllegalStateException: broken\n\tat a.b.C"),
            SparkLostError,
            "Spark ended a call with an error: : java.lang.IllegalStateException: broken: its log",
        ),
        (
            Py4JError("x\njava.io.IOException: No space left on device"),
            MirrorError,
            r"cannot write to a folder of its own .* \(No space left on device\): free space there",
        ),
        (
            Py4JError("x\njava.io.FileNotFoundException: /c/offsets/.1.tmp (Read-only file system)"),
            ConfigError,
            r"\(Read-only file system\): make it writable, or name another folder",
        ),
    ],
)
def test_an_error_of_the_surroundings_is_one_line_with_a_remedy(error: Exception, kind: type[MirrorError], text: str) -> None:
    from_error = explained(error)
    assert type(from_error) is kind
    assert "\n" not in str(from_error)
    with pytest.raises(kind, match=text):
        raise from_error


@pytest.mark.parametrize(
    ("may_write", "kind", "remedy"),
    [(False, ConfigError, "make it writable, or name another folder"), (True, MirrorError, "free")],
)
def test_a_folder_that_hadoop_does_not_make_is_read_only_or_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_write: bool, kind: type[MirrorError], remedy: str
) -> None:
    """Hadoop does not say which. `os.access` is also False for root where the file system is mounted read-only."""
    asked = []

    def access(folder: Path, mode: int) -> bool:
        asked.append(folder)
        return may_write

    monkeypatch.setattr(os, "access", access)
    folder = tmp_path / "c" / "offsets"
    error = explained(Py4JError(f"x\n: java.io.IOException: mkdir of file:{folder} failed"))
    assert type(error) is kind
    assert f"(mkdir of {folder} failed): {remedy}" in str(error)
    assert asked == [tmp_path]


@pytest.fixture
def clusters() -> Iterator[tuple[StrictCluster, StrictCluster]]:
    with StrictCluster(cluster_id="east") as source, StrictCluster(cluster_id="west") as target:
        source.create_topic("orders")
        yield source, target


COMMANDS = [
    ["run", "m.yaml", "--available-now"],
    ["pause", "m.yaml", "orders"],
    ["forget", "m.yaml", "orders"],
    ["resume", "m.yaml", "orders"],
    ["redo", "m.yaml", "orders", "0", "0", "5", "--to", "again"],
    ["status", "m.yaml"],
    ["report", "m.yaml"],
    ["translate", "m.yaml", "orders", "0", "1"],
    ["recover", "m.yaml"],
    ["verify", "m.yaml"],
    ["quarantine", "list", "m.yaml"],
    ["archive", "run", "a.yaml", "--available-now"],
    ["archive", "status", "a.yaml"],
    ["archive", "verify", "a.yaml"],
    ["archive", "clean", "a.yaml"],
    ["archive", "expire", "a.yaml"],
    ["restore", "r.yaml"],
    ["restore", "r.yaml", "--dry-run"],
    ["verify", "r.yaml"],
]
_EACH_COMMAND = """
import contextlib, io, json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from shallow_mirror import cli
ends = []
for command in json.loads(sys.argv[2]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            cli.main(command)
        except SystemExit as end:
            ends.append([end.code, said.getvalue()])
print(json.dumps(ends))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "missing", [[], ["pyspark", "py4j", "delta"], ["pyspark.sql.streaming.datasource"], ["confluent_kafka"]], ids=str
)
def test_every_command_ends_in_one_line_where_packages_are_missing_and_tables_cannot_be_written(
    tmp_path: Path, clusters: tuple[StrictCluster, StrictCluster], missing: list[str]
) -> None:
    """`tables` lie below a file. Both clusters can be reached: a run waits for one that cannot."""
    (tmp_path / "file").touch()
    source, target = (
        {"alias": alias, "client": {"bootstrap.servers": cluster.bootstrap}}
        for alias, cluster in zip(("east", "west"), clusters, strict=True)
    )
    folders = {"tables": "file/tables", "objects": "file/objects"}
    topics = {"include": [".*"]}
    documents = {
        "m": {"mirror": "m", "source": source, "target": target, "topics": topics, "tables": "file/tables"},
        "a": {"archive": "a", "source": source, "topics": topics, **folders},
        "r": {"restore": "r", "archive": folders, "target": target, "tables": "file/restored"},
    }
    for name, document in documents.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-c", _EACH_COMMAND, json.dumps(missing), json.dumps(COMMANDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    for command, (code, said) in zip(COMMANDS, json.loads(process.stdout), strict=True):
        assert code in (1, 2), (command, code, said)
        assert "confluent_kafka" not in said, (command, said)
        last = said.strip().splitlines()[-1]
        assert "Traceback" not in said, (command, said)
        assert last.split(":")[0].endswith("Error"), (command, said)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def exchange(file: Path) -> None:
    file.write_bytes(b"garbage")


def lose(file: Path) -> None:
    file.unlink()


READING_COMMANDS = [
    ["status", "m.yaml"],
    ["verify", "m.yaml"],
    ["preflight", "m.yaml"],
    ["pause", "m.yaml", "orders"],
    ["translate", "m.yaml", "orders", "0", "1"],
    ["recover", "m.yaml"],
]


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [cut, exchange, lose])
def test_every_command_that_reads_rows_says_which_table_is_damaged_and_to_put_the_newest_copy_back(
    tmp_path: Path, clusters: tuple[StrictCluster, StrictCluster], damage: Callable[[Path], None]
) -> None:
    owner = LedgerOwner.take_over(
        str(tmp_path / "tables"),
        name="m",
        source_cluster_id="east",
        target_cluster_id="west",
        run=run_of("one"),
        now_ms=lambda: 0,
    )
    owner.settle()
    for start in (0, 5):
        owner.next_decision()
        owner.decide([data(start, start + 5, SlotTxn("m-0", 1, 0))], 0)
        owner.settle()
    oldest = min((tmp_path / "tables" / "offset_map").glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    damage(oldest)  # the newest one, half-written, would be that of a power failure
    source, target = (
        {"alias": alias, "client": {"bootstrap.servers": cluster.bootstrap}}
        for alias, cluster in zip(("east", "west"), clusters, strict=True)
    )
    document = {"mirror": "m", "source": source, "target": target, "topics": {"include": [".*"]}, "tables": "tables"}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-c", _EACH_COMMAND, "[]", json.dumps(READING_COMMANDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for command, (code, said) in zip(READING_COMMANDS, json.loads(process.stdout), strict=True):
        last = said.strip().splitlines()[-1]
        assert code == 1, (command, said)
        assert "Traceback" not in said, (command, said)
        assert last.startswith("OffsetMapConflictError: "), (command, said)
        assert f"{tmp_path}/tables/offset_map" in last, (command, said)
        assert oldest.name in last, (command, said)
        assert "put the newest copy of the tables back" in last, (command, said)


@pytest.mark.slow
def test_demo_and_local_brokers_name_the_extra_that_installs_their_client(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", _EACH_COMMAND, json.dumps(["confluent_kafka"]), json.dumps([["demo"], ["local-kafka"]])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for code, said in json.loads(process.stdout):
        assert code == 2
        assert (
            "confluent_kafka is not installed; this needs the versions that pip install 'shallow-mirror[local]' installs" in said
        )
