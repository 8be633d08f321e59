"""The archive of Spark's classes: which one, the options of the JVM, and how it comes into its place."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.streaming.spark import class_archive
from shallow_mirror.streaming.spark.class_archive import ClassArchive, jvm_options_text


@pytest.fixture
def java(tmp_path: Path) -> str:
    home = tmp_path / "java home"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").write_bytes(b"base")
    (home / "bin").mkdir()
    (home / "bin" / "java").touch()
    return str(home / "bin" / "java")


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "spark-core.jar").write_bytes(b"core")
    return folder


def archive_of(java: str, jars: Path, cache: Path) -> ClassArchive:
    archive = ClassArchive.of(java, jars, cache)
    assert archive is not None
    return archive


def test_every_java_and_every_set_of_jars_has_an_archive_of_its_own(java: str, jars: Path, tmp_path: Path) -> None:
    first = archive_of(java, jars, tmp_path)
    assert archive_of(java, jars, tmp_path) == first
    (jars / "spark-sql.jar").write_bytes(b"sql")
    second = archive_of(java, jars, tmp_path)
    Path(java).parent.parent.joinpath("lib", "server", "classes.jsa").write_bytes(b"another base")
    assert len({first, second, archive_of(java, jars, tmp_path)}) == 3


def test_a_copy_with_times_of_whole_seconds_has_the_same_archive(java: str, jars: Path, tmp_path: Path) -> None:
    (jar,) = jars.iterdir()
    base = Path(java).parent.parent.joinpath("lib", "server", "classes.jsa")
    for file in (jar, base):
        os.utime(file, ns=(1_700_000_000_987_654_321,) * 2)
    first = archive_of(java, jars, tmp_path)
    for file in (jar, base):
        os.utime(file, ns=(1_700_000_000_000_000_000,) * 2)
    assert archive_of(java, jars, tmp_path) == first


def test_a_java_without_an_archive_of_its_own_classes_writes_none(java: str, jars: Path, tmp_path: Path) -> None:
    Path(java).parent.parent.joinpath("lib", "server", "classes.jsa").unlink()
    assert ClassArchive.of(java, jars, tmp_path) is None


def test_the_first_jvm_writes_the_archive_and_later_ones_use_it(java: str, jars: Path, tmp_path: Path) -> None:
    archive = archive_of(java, jars, tmp_path / "cache")
    archive.prepare()
    assert archive.jvm_options()[-1] == f"-XX:ArchiveClassesAtExit={archive.written_path}"
    archive.path.write_bytes(b"classes")
    assert archive.jvm_options()[-1] == f"-XX:SharedArchiveFile={archive.path}"


def test_what_killed_runs_left_is_removed_later(java: str, jars: Path, tmp_path: Path) -> None:
    archive = archive_of(java, jars, tmp_path)
    old, new = archive.path.with_suffix(".1"), archive.path.with_suffix(".2")
    for left in (old, new):
        left.touch()
    os.utime(old, (0, 0))
    archive.prepare()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_folder_that_cannot_be_made_is_an_error(java: str, jars: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(OSError, match="cache"):
        archive_of(java, jars, tmp_path / "cache").prepare()


def jvm(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import sys; sys.stdin.read(); {script}"], stdin=subprocess.PIPE)


def test_the_archive_is_put_into_its_place_when_the_jvm_has_ended(java: str, jars: Path, tmp_path: Path) -> None:
    archive = archive_of(java, jars, tmp_path)
    archive.end_and_keep(jvm(f"open({str(archive.written_path)!r}, 'w').write('classes')"))
    assert archive.path.read_text() == "classes"
    assert not archive.written_path.exists()


def test_a_jvm_that_wrote_none_is_reported(java: str, jars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = archive_of(java, jars, tmp_path)
    with caplog.at_level(logging.WARNING):
        archive.end_and_keep(jvm("0"))
    assert "has written no archive" in caplog.text
    assert not archive.is_written


def gateway_of(process: subprocess.Popen[bytes]) -> Any:
    """As of py4j. Its JVM writes nothing to the streams of the run."""
    closed: list[str] = []
    system = SimpleNamespace(**{name: SimpleNamespace(close=partial(closed.append, name)) for name in ("out", "err")})
    return SimpleNamespace(
        proc=process, jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system))), closed=closed
    )


def jvm_until_sigterm(script: str) -> subprocess.Popen[bytes]:
    handler = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: ({script}, sys.exit())); print(flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{handler}; signal.pause()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # the limit of the test ends it
        time.sleep(0.02)


def test_another_process_ends_the_jvm_and_keeps_what_it_writes(java: str, jars: Path, tmp_path: Path) -> None:
    archive = archive_of(java, jars, tmp_path)
    process = jvm_until_sigterm(f"open({str(archive.written_path)!r}, 'w').write('classes')")
    gateway = gateway_of(process)
    archive.hand_over(gateway, tmp_path / "spark.log")
    assert gateway.closed == ["out", "err"]
    assert process.wait() == 0
    until(lambda: archive.is_written)
    assert archive.path.read_text() == "classes"
    assert not archive.written_path.exists()
    os.wait()


def test_a_jvm_that_wrote_nothing_for_the_other_process_is_in_sparks_log(java: str, jars: Path, tmp_path: Path) -> None:
    archive, log = archive_of(java, jars, tmp_path), tmp_path / "spark.log"
    log.write_text("before\n")
    process = jvm_until_sigterm("0")
    archive.hand_over(gateway_of(process), log)
    process.wait()
    os.wait()
    assert log.read_text() == (
        "before\nWARN Java has written no archive of Spark's classes: the next start takes as long as this one\n"
    )


@pytest.mark.slow
def test_a_jvm_that_does_not_end_is_killed_and_leaves_nothing(
    java: str, jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_KEPT_WITHIN_S", 0.2)
    archive, log = archive_of(java, jars, tmp_path), tmp_path / "spark.log"
    process = jvm_until_sigterm(f"open({str(archive.written_path)!r}, 'w').write('half'), signal.pause()")
    archive.hand_over(gateway_of(process), log)
    assert process.wait() == -signal.SIGKILL
    os.wait()
    assert "has not ended within 0 s" in log.read_text()
    assert not archive.is_written
    assert not archive.written_path.exists()


def test_a_jvm_that_has_ended_before_leaves_no_process(java: str, jars: Path, tmp_path: Path) -> None:
    process = jvm("0")
    process.communicate()
    archive_of(java, jars, tmp_path).hand_over(gateway_of(process), tmp_path / "spark.log")
    assert not (tmp_path / "spark.log").exists()


@pytest.mark.parametrize(
    ("waits", "unit", "expected"),
    [
        (False, None, "hand_over"),
        (False, "1", "hand_over"),  # of the terminal's unit
        (False, "this process", "end_and_keep"),
        (True, None, "end_and_keep"),
    ],
)
def test_a_run_waits_only_where_its_end_is_that_of_its_processes(
    waits: bool, unit: str | None, expected: str, java: str, jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unit is None:
        monkeypatch.delenv("SYSTEMD_EXEC_PID", raising=False)
    else:
        monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()) if unit == "this process" else unit)
    registered: list[str] = []
    monkeypatch.setattr(atexit, "register", lambda function, *_: registered.append(function.__name__))
    archive_of(java, jars, tmp_path).keep_at_exit(SimpleNamespace(proc=None), tmp_path / "spark.log", waits=waits)
    assert registered == [expected]


def test_options_with_spaces_are_quoted() -> None:
    assert jvm_options_text(("-Xlog:disable", "-XX:SharedArchiveFile=/a b/c")) == (
        '"-Xlog:disable" "-XX:SharedArchiveFile=/a b/c"'
    )
