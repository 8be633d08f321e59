"""A run continues without an economy whose trick fails, with one line in the log, and does not try it again."""

from __future__ import annotations

import importlib
import logging
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.spark import economies, planning_daemons, pyarrow_alone, spark_session, worker_daemon
from shallow_mirror.streaming.spark.class_archive import ClassArchive
from shallow_mirror.streaming.spark.economies import WITHOUT_VARIABLE, Economy, check_switches, is_used, or_without
from shallow_mirror.streaming.spark.planning_daemons import PlanningDaemons
from shallow_mirror.streaming.spark.pyarrow_alone import OWN_SESSION_VARIABLE

CAUSES = [
    Py4JError("org.apache.spark.SparkEnv.get does not exist in the JVM\n\tat py4j.Gateway"),
    Py4JNetworkError("Answer from Java side is empty"),
    AttributeError("'NoneType' object has no attribute 'sendall'"),
    RuntimeError(),
]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(economies, "_failed", set())
    monkeypatch.delenv(WITHOUT_VARIABLE, raising=False)
    caplog.set_level(logging.INFO, "shallow_mirror")


def only_line(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [record for record in caplog.records if record.name == economies.__name__]
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    return record.getMessage()


class FailingJvm:
    """Raises at the first attribute. `threads`: those that asked."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.threads: list[threading.Thread] = []

    @property
    def java(self) -> Any:
        self.threads.append(threading.current_thread())
        raise self._error


@pytest.mark.parametrize("error", CAUSES, ids=lambda error: type(error).__name__)
def test_a_query_keeps_its_planning_daemons_where_spark_has_others(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(OWN_SESSION_VARIABLE, "1")
    jvm = FailingJvm(error)
    for _ in range(2):
        with PlanningDaemons(SimpleNamespace(_jvm=jvm)) as daemons:
            daemons.end_of_creation()
            daemons.end_of_planning()
    assert len(jvm.threads) == 1
    assert jvm.threads[0] is not threading.current_thread()  # whose connection the error may close is not the query's
    assert "without planning-daemons: Spark's planning daemons stay in memory" in only_line(caplog)


def test_planning_daemons_that_are_switched_off_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN_SESSION_VARIABLE, "1")
    monkeypatch.setenv(WITHOUT_VARIABLE, "worker-daemon, planning-daemons")
    monkeypatch.setattr(planning_daemons, "end_daemons", lambda *_: pytest.fail("they are looked up"))
    with PlanningDaemons(SimpleNamespace(_jvm=None)) as daemons:
        daemons.end_of_creation()


@pytest.mark.parametrize("keep_out", [pyarrow_alone.keep_pandas_out, pyarrow_alone.keep_datasets_out])
def test_pyarrow_is_used_as_it_is_where_it_needs_what_is_kept_out(
    keep_out: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ImportError("pandas is needed")

    for name in ("pandas", "pyarrow.dataset", "pyarrow.acero"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(importlib, "import_module", fail)
    monkeypatch.setattr(pa, "array", fail)
    finders = [*sys.meta_path]
    keep_out()
    keep_out()
    assert sys.meta_path == finders
    assert only_line(caplog).endswith("(ImportError: pandas is needed)")


def archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(tmp_path / "spark-classes.jsa")


def session_of(gateway: Any) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))


def test_spark_starts_without_an_archive_of_classes_where_java_rejects_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spark_session, "_class_archive", lambda: archive(tmp_path))
    started: list[ClassArchive | None] = []

    def start(classes: ClassArchive | None) -> str:
        started.append(classes)
        if classes is not None:
            raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")
        return "session"

    assert [spark_session._started_with_archive(start, tmp_path / "log", waits=False) for _ in range(2)] == ["session"] * 2
    assert started == [archive(tmp_path), None, None]
    assert "JAVA_GATEWAY_EXITED" in only_line(caplog)


def test_spark_that_starts_neither_with_nor_without_the_archive_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "_class_archive", lambda: archive(tmp_path))

    def start(_: ClassArchive | None) -> Any:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        spark_session._started_with_archive(start, tmp_path / "log", waits=False)


def test_a_session_whose_java_process_is_not_known_writes_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spark_session, "_class_archive", lambda: archive(tmp_path))
    session = session_of(gateway=None)
    assert spark_session._started_with_archive(lambda _: session, tmp_path / "log", waits=True) is session
    assert "has no attribute 'proc'" in only_line(caplog)


def test_the_end_of_a_process_goes_on_where_the_archive_cannot_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with subprocess.Popen(["true"]) as jvm:
        classes = archive(tmp_path)
        classes.written_path.touch()
        classes.path.mkdir()
        classes.end_and_keep(jvm)
    assert "class-archive" in only_line(caplog)


@pytest.mark.parametrize("fails", ["installed_pyspark_first", "_prepare"])
def test_sparks_own_daemon_runs_where_nothing_can_be_imported_ahead(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> None:
        raise ModuleNotFoundError("No module named 'pyspark.worker'")

    run: list[tuple[str, str]] = []
    monkeypatch.setattr(sys, "argv", ["worker_daemon", "pyspark.worker"])
    monkeypatch.setattr(worker_daemon, "installed_pyspark_first", lambda path: [*path])
    monkeypatch.setattr(worker_daemon, "begin_logging_from_environment", lambda: None)
    monkeypatch.setattr(worker_daemon, fails, fail)
    monkeypatch.setattr(runpy, "run_module", lambda name, run_name: run.append((name, run_name)))
    worker_daemon.main()
    assert run == [("pyspark.daemon", "__main__")]
    assert only_line(caplog).endswith("(ModuleNotFoundError: No module named 'pyspark.worker')")


def test_a_switched_off_worker_daemon_is_not_in_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "spark.python.daemon.module"
    assert name in spark_session._local_settings(tmp_path / "log4j", tmp_path, ())
    monkeypatch.setenv(WITHOUT_VARIABLE, "worker-daemon")
    assert name not in spark_session._local_settings(tmp_path / "log4j", tmp_path, ())


def test_an_error_of_java_is_named_by_its_own_first_line(caplog: pytest.LogCaptureFixture) -> None:
    text = "An error occurred while calling z:Class.forName.\n: java.lang.NoClassDefFoundError: com/google/X\n\tat java.base"
    with or_without(Economy.PLANNING_DAEMONS):
        raise Py4JError(text)
    assert only_line(caplog).endswith("(java.lang.NoClassDefFoundError: com/google/X)")
    assert not is_used(Economy.PLANNING_DAEMONS)
    assert is_used(Economy.CLASS_ARCHIVE)


def test_a_switch_of_an_unknown_economy_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT_VARIABLE, "class-archive,no-such")
    with pytest.raises(ConfigError, match="no-such: there are class-archive, planning-daemons, pyarrow-alone, worker-daemon"):
        check_switches()
