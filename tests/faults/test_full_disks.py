"""Full and read-only disks under commands, on real brokers: one line with a remedy, and nothing lost or written twice."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.conftest import TwoClusters
from tests.faults.storage_faults import may_mount, small_disk
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import create_topic, write

pytestmark = [
    pytest.mark.brokers,
    pytest.mark.long,
    pytest.mark.skipif(not may_mount(), reason="mounts file systems, which needs root"),
]


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """No block is left on the file system of `folder`."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


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
        assert "Traceback" not in stderr
        assert str(checkpoint) in stderr.splitlines()[-1]
        assert command("run", str(conf), "--available-now")[0] == 0
    assert runs.read_values(target, topic_name) == ["before", "behind"]
