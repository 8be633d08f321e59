"""Full and read-only disks under commands, on real brokers: one line with a remedy, and nothing lost or written twice."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.conftest import TwoClusters
from tests.faults.storage_faults import may_mount, small_disk
from tests.support import archive_runs as archives, mirror_runs as runs, restore_runs as restores
from tests.support.mirror_runs import create_topic, write

from shallow_mirror.config import MirrorConfig
from shallow_mirror.types import TopicPartition

pytestmark = [
    pytest.mark.brokers,
    pytest.mark.long,
    pytest.mark.skipif(not may_mount(), reason="mounts file systems, which needs root"),
]


@contextlib.contextmanager
def full(folder: Path, free_bytes: int = 0) -> Iterator[None]:
    """No block is left on the file system of `folder`, or some."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    os.truncate(filler, max(filler.stat().st_size - free_bytes, 0))
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Mounted over itself: a file system with an open file, as Spark's log, cannot be mounted again."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "bind,remount,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def command(*arguments: str) -> tuple[int, str]:
    """Return the exit code and standard error of `shallow-mirror`."""
    ended = subprocess.run(
        [sys.executable, "-m", "shallow_mirror.cli", *arguments],
        env=runs.own_spark_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    return ended.returncode, ended.stderr


def require_no_traces(*texts: str) -> None:
    """Fail where a text has a trace of Python or Java."""
    for text in texts:
        assert "Traceback" not in text
        assert "\tat " not in text, "a trace of Java"


@pytest.mark.parametrize(("broken", "exit_code"), [(full, 1), (read_only, 2)])
def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_its_folder_and_a_remedy(
    two_clusters: TwoClusters,
    topic_name: str,
    tmp_path: Path,
    broken: Callable[[Path], AbstractContextManager[None]],
    exit_code: int,
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["before"])
    with small_disk(tmp_path / "disk", size_bytes=2 << 20):
        checkpoint = tmp_path / "disk" / "checkpoint"
        conf = runs.conf_file(tmp_path, source, target, [topic_name], checkpoint=str(checkpoint))
        assert command("run", str(conf), "--available-now")[0] == 0
        write(source, topic_name, ["behind"])
        with broken(tmp_path / "disk"):
            code, stderr = command("run", str(conf), "--available-now")
        assert code == exit_code, stderr
        require_no_traces(stderr)
        assert str(checkpoint) in stderr.splitlines()[-1]
        assert command("run", str(conf), "--available-now")[0] == 0
    assert runs.read_values(target, topic_name) == ["before", "behind"]


@pytest.mark.timeout(1200)
def test_runs_whose_checkpoint_has_some_free_blocks_copy_all_once_or_end_with_a_remedy(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path
) -> None:
    """A file that is written is followed by one that is not: each number of free blocks cuts a run elsewhere."""
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    written = ["before"]
    write(source, topic_name, written)
    with small_disk(tmp_path / "disk", size_bytes=2 << 20):
        checkpoint = tmp_path / "disk" / "checkpoint"
        conf = runs.conf_file(tmp_path, source, target, [topic_name], checkpoint=str(checkpoint))
        assert command("run", str(conf), "--available-now")[0] == 0
        for free_blocks in (1, 2, 3, 4, 6, 9, 14):
            written.append(f"with {free_blocks} blocks")
            write(source, topic_name, written[-1:])
            with full(tmp_path / "disk", free_bytes=free_blocks << 12):
                code, stderr = command("run", str(conf), "--available-now")
            require_no_traces(stderr)
            is_named = str(checkpoint) in stderr.splitlines()[-1] and "free space there" in stderr.splitlines()[-1]
            assert code == 0 or (code == 1 and is_named), (free_blocks, stderr)
            code, stderr = command("run", str(conf), "--available-now")
            assert code == 0, (free_blocks, stderr)
            assert runs.read_values(target, topic_name) == written


def test_a_run_waits_for_tables_on_a_full_disk_and_pause_ends_with_their_folder_and_a_remedy(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path
) -> None:
    """The log of Spark is on that disk as well."""
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["before"])
    with small_disk(tmp_path / "disk", size_bytes=4 << 20):
        tables = tmp_path / "disk" / "tables"
        conf = runs.conf_file(
            tmp_path, source, target, [topic_name], tables=str(tables), checkpoint=str(tmp_path / "spark" / "checkpoint")
        )
        settings = MirrorConfig.load(conf)
        with runs.command(tmp_path, conf) as process:
            runs.wait_for_run(process, "the first record", lambda: runs.positions(settings).get((topic_name, 0), 0) > 0)
            with full(tmp_path / "disk"):
                write(source, topic_name, ["behind"])
                runs.wait_for_run(process, "a report", lambda: "No space left on device. Remedy: " in runs.log_text(tmp_path))
                paused_on_full = command("pause", str(conf), topic_name)
            runs.wait_for_run(process, "the second record", lambda: runs.positions(settings)[topic_name, 0] > 1)
            process.terminate()
            assert process.wait(60) == 0
        with read_only(tmp_path / "disk"):
            paused_on_read_only = command("pause", str(conf), topic_name)
    for reason, (code, stderr) in (
        ("No space left on device", paused_on_full),
        ("Read-only file system", paused_on_read_only),
    ):
        assert code == 1, stderr
        assert f"{tables}/controls: the store did not append rows: {reason}. Remedy: " in stderr.splitlines()[-1]
    require_no_traces(runs.log_text(tmp_path), paused_on_full[1], paused_on_read_only[1])
    assert runs.read_values(target, topic_name) == ["before", "behind"]


@pytest.mark.parametrize("broken", [full, read_only])
def test_a_live_run_waits_for_tables_that_become_unwritable_and_continues_when_they_are_not(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path, broken: Callable[[Path], AbstractContextManager[None]]
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["before"])
    with small_disk(tmp_path / "disk", size_bytes=4 << 20):
        settings_of_disk = {"tables": str(tmp_path / "disk" / "tables"), "checkpoint": str(tmp_path / "spark" / "checkpoint")}
        conf = runs.conf_file(tmp_path, source, target, [topic_name], **settings_of_disk)
        settings = MirrorConfig.load(conf)
        with runs.command(tmp_path, conf) as process:
            runs.wait_for_run(process, "the first record", lambda: runs.positions(settings).get((topic_name, 0), 0) > 0)
            with broken(tmp_path / "disk"):
                write(source, topic_name, ["behind"])
                runs.wait_for_run(process, "a report", lambda: " Remedy: " in runs.log_text(tmp_path))
            runs.wait_for_run(process, "the second record", lambda: runs.positions(settings)[topic_name, 0] > 1)
            process.terminate()
            assert process.wait(60) == 0
    # A thread of deltalake may print that it panicked: no code of Python has a part in that.
    require_no_traces(runs.log_text(tmp_path))
    assert runs.read_values(target, topic_name) == ["before", "behind"]


@pytest.mark.parametrize(("broken", "exit_code"), [(full, 1), (read_only, 2)])
def test_a_checkpoint_that_becomes_unwritable_ends_a_live_run_with_its_folder_and_a_remedy(
    two_clusters: TwoClusters,
    topic_name: str,
    tmp_path: Path,
    broken: Callable[[Path], AbstractContextManager[None]],
    exit_code: int,
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["before"])
    with small_disk(tmp_path / "disk", size_bytes=4 << 20):
        checkpoint = tmp_path / "disk" / "checkpoint"
        conf = runs.conf_file(tmp_path, source, target, [topic_name], checkpoint=str(checkpoint))
        settings = MirrorConfig.load(conf)
        with runs.command(tmp_path, conf) as process:
            runs.wait_for_run(process, "the first record", lambda: runs.positions(settings).get((topic_name, 0), 0) > 0)
            with broken(tmp_path / "disk"):
                write(source, topic_name, ["behind"])
                assert process.wait(180) == exit_code, runs.log_text(tmp_path)
        stderr = runs.log_text(tmp_path)
        require_no_traces(stderr)
        assert str(checkpoint) in stderr.splitlines()[-1]
        code, stderr = command("run", str(conf), "--available-now")
        assert code == 0, stderr
    assert runs.read_values(target, topic_name) == ["before", "behind"]


@pytest.mark.parametrize("broken", [full, read_only])
@pytest.mark.parametrize("place", ["objects", "tables"])
def test_a_live_archive_waits_for_a_disk_that_becomes_unwritable_and_continues_when_it_is_not(
    two_clusters: TwoClusters,
    topic_name: str,
    tmp_path: Path,
    place: str,
    broken: Callable[[Path], AbstractContextManager[None]],
) -> None:
    source = two_clusters.source.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["before"])
    with small_disk(tmp_path / "disk", size_bytes=4 << 20):
        places = {place: str(tmp_path / "disk" / place), "checkpoint": str(tmp_path / "spark" / "checkpoint")}
        document = archives.document(source, [topic_name], **places)
        conf = tmp_path / "archive.yaml"
        conf.write_text(json.dumps(document))
        settings = archives.config(tmp_path, source, [topic_name], **places)
        with (tmp_path / "stderr.txt").open("w") as stderr_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "shallow_mirror.cli", "archive", "run", str(conf)],
                env=runs.own_spark_environment(),
                stderr=stderr_file,
                text=True,
                start_new_session=True,
            )
        with runs.killed_at_last(process):

            def is_archived(end: int) -> bool:
                has_table = Path(settings.tables, "archive_segments", "_delta_log").exists()
                return has_table and archives.covered(settings).get(TopicPartition(topic_name, 0), 0) >= end

            runs.wait_for_run(process, "the first record", lambda: is_archived(1))
            with broken(tmp_path / "disk"):
                write(source, topic_name, ["behind"])
                runs.wait_for_run(process, "a report", lambda: " Remedy: " in runs.log_text(tmp_path))
            runs.wait_for_run(process, "the second record", lambda: is_archived(2))
            process.terminate()
            assert process.wait(60) == 0
        stderr = runs.log_text(tmp_path)
        assert any(str(tmp_path / "disk" / place) in line and " Remedy: " in line for line in stderr.splitlines())
        require_no_traces(stderr)
        archived = archives.archived_bytes(settings)
        assert archived == archives.source_bytes(source, archives.covered(settings))
        code, stderr = command("archive", "run", str(conf), "--available-now")
        assert code == 0, stderr


def test_a_restore_whose_disk_becomes_full_continues_with_its_next_start_and_restores_nothing_twice(
    two_clusters: TwoClusters, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    values = [f"{number:04d}" + "x" * 4000 for number in range(4000)]
    for first in range(0, len(values), 100):
        write(source, topic_name, values[first : first + 100])
    copy = f"east.{topic_name}"
    small_decisions = {"object_bytes": 1 << 20, "read": {"slots": 1}}
    archive = archives.document(source, [topic_name], **small_decisions)
    archive_conf = tmp_path / "archive.yaml"
    archive_conf.write_text(json.dumps(archive))
    assert command("archive", "run", str(archive_conf), "--available-now")[0] == 0
    archived = archives.config(tmp_path, source, [topic_name], **small_decisions)
    with small_disk(tmp_path / "disk", size_bytes=4 << 20):
        # Each decision of the archive is a micro-batch: there are more to come when the first one is visible.
        small = {"read": {"micro_batch_bytes": 1 << 20}, "write": {"slot_bytes": 8192}}
        document = restores.document(archived, target, tables=str(tmp_path / "disk" / "restore"), **small)
        conf = tmp_path / "restore.yaml"
        conf.write_text(json.dumps(document))
        with (tmp_path / "stderr.txt").open("w") as stderr_file:
            began = subprocess.Popen(
                [sys.executable, "-m", "shallow_mirror.cli", "restore", str(conf)],
                env=runs.own_spark_environment(),
                stderr=stderr_file,
                text=True,
                start_new_session=True,
            )
        with runs.killed_at_last(began):
            has_begun = lambda: copy in runs.topics_of(target) and runs.last_stable_offset(target, copy) > 0  # noqa: E731
            runs.wait_for_run(began, "the first copies", has_begun)
            with full(tmp_path / "disk"):
                runs.wait_for_run(began, "a report", lambda: "No space left on device. Remedy: " in runs.log_text(tmp_path))
                began.terminate()
                assert began.wait(120) == 0, "a stop that was asked for"
        code, stderr = command("restore", str(conf))
        assert code == 0, stderr
    require_no_traces(runs.log_text(tmp_path), stderr)
    assert runs.read_values(target, copy) == values
