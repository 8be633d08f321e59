"""Several mirrors in one process, with a stand-in for Spark: isolation of their ends, stops, times, log lines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from shallow_mirror.commands.options import exit_code_of_several
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, FencedError, MirrorError, RecoverNeededError, SparkLostError
from shallow_mirror.log_context import current_name
from shallow_mirror.logging_setup import TextFormatter
from shallow_mirror.streaming.runs.mirrors import Mirrors
from shallow_mirror.streaming.spark.shared_session import SharedSession, task_slots

PATIENCE_S = 20.0


class FakeMirror:
    """Runs `body` with itself; by default until it is stopped."""

    def __init__(self, body: Callable[[FakeMirror], None]) -> None:
        self._body = body
        self.stopped = threading.Event()
        self.options: dict[str, Any] = {}

    def stop(self) -> None:
        self.stopped.set()

    def run(self, spark: Any, **options: Any) -> None:
        self.options = options | {"spark": spark, "log_name": current_name()}
        self._body(self)


def until_stopped(mirror: FakeMirror) -> None:
    assert mirror.stopped.wait(PATIENCE_S)


def raising(error: BaseException) -> Callable[[FakeMirror], None]:
    def run(_: FakeMirror) -> None:
        raise error

    return run


class FakeSession(SharedSession):
    def of_mirror(self, name: str) -> Any:
        return f"session of {name}"


class Process:
    """Mirrors with these bodies, by name."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0, **bodies: Callable[[FakeMirror], None]) -> None:
        self.fakes = {name: FakeMirror(body) for name, body in bodies.items()}
        self.is_session_open = False
        configs = [config(name) for name in bodies]
        self.mirrors = Mirrors(configs, make=lambda made: self.fakes[made.mirror], open_session=self._session, clock=clock)

    @contextmanager
    def _session(self, configs: Sequence[MirrorConfig], _spark: Any) -> Iterator[SharedSession]:
        assert [made.mirror for made in configs] == list(self.fakes)
        self.is_session_open = True
        yield FakeSession(None, None)
        self.is_session_open = False


def config(name: str) -> MirrorConfig:
    return MirrorConfig.model_validate(
        {
            "mirror": name,
            "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
            "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}},
            "topics": {"include": ["orders"]},
            "tables": f"/tables-of-{name}",
        }
    )


@pytest.mark.parametrize("error", [ConfigError("no such topic"), FencedError("run 7"), MirrorError("x"), ValueError("a bug")])
def test_a_mirror_that_ends_with_an_error_does_not_end_the_others(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    has_ended = threading.Event()

    def watch(mirror: FakeMirror) -> None:
        assert has_ended.wait(PATIENCE_S)
        assert not mirror.stopped.is_set()
        process.mirrors.stop()
        until_stopped(mirror)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "still running: good, other" in record.getMessage():
                has_ended.set()

    process = Process(bad=raising(error), good=watch, other=until_stopped)
    handler = Handler()
    logging.getLogger("shallow_mirror").addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            ends = process.mirrors.run()
    finally:
        logging.getLogger("shallow_mirror").removeHandler(handler)
    assert (ends[0].mirror, ends[0].error) == ("bad", error)
    assert {end.mirror: end.error for end in ends[1:]} == {"good": None, "other": None}
    assert not process.is_session_open
    assert "no mirror is left" in caplog.text
    if isinstance(error, MirrorError):
        assert f"ended by {type(error).__name__}: {error}" in caplog.text
    else:
        assert "Traceback" in caplog.text


def test_every_mirror_has_a_session_of_its_own_and_log_lines_with_its_name() -> None:
    process = Process(a=lambda _: None, b=lambda _: None)
    process.mirrors.run(available_now=True)
    for name, fake in process.fakes.items():
        assert fake.options == {
            "spark": f"session of {name}",
            "log_name": name,
            "available_now": True,
            "for_seconds": None,
        }
    assert current_name() is None


def test_the_time_of_a_run_includes_the_start_of_spark() -> None:
    times = iter([100.0, 108.0, 108.0])
    process = Process(clock=lambda: next(times), a=lambda _: None, b=lambda _: None)
    process.mirrors.run(for_seconds=30.0)
    assert [fake.options["for_seconds"] for fake in process.fakes.values()] == [22.0, 22.0]
    times = iter([100.0, 140.0])
    process = Process(clock=lambda: next(times), a=lambda _: None)
    process.mirrors.run(for_seconds=30.0)
    assert process.fakes["a"].options["for_seconds"] == 0.0


def test_a_stop_that_comes_before_the_session_ends_all_mirrors() -> None:
    process = Process(a=until_stopped, b=until_stopped)
    process.mirrors.stop()
    assert [end.error for end in process.mirrors.run()] == [None, None]


@pytest.mark.parametrize("error", [SparkLostError("Spark's JVM exited"), Py4JNetworkError("Answer from Java side is empty")])
def test_the_end_of_the_jvm_ends_all_mirrors(error: Exception) -> None:
    """One of them may be waiting for a cluster, and would not notice."""
    process = Process(a=raising(error), b=until_stopped)
    first, second = process.mirrors.run()
    assert isinstance(first.error, SparkLostError)
    assert (second.mirror, second.error) == ("b", None)


def test_a_text_line_begins_with_the_name_of_the_mirror() -> None:
    written = StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(TextFormatter())
    logger = logging.getLogger("a logger")
    logger.addHandler(handler)
    try:
        Process(orders=lambda _: logger.warning("a line")).mirrors.run()
        logger.warning("another")
    finally:
        logger.removeHandler(handler)
    assert [line.partition(": ")[2] for line in written.getvalue().splitlines()] == ["[orders] a line", "another"]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([None, None], 0),
        ([None, ConfigError("x")], 2),
        ([ConfigError("x"), RecoverNeededError("x"), None], 4),
        ([ConfigError("x"), SparkLostError("x"), RecoverNeededError("x")], 1),
        ([ValueError("x"), ConfigError("x")], 1),
        ([SparkLostError("x"), FencedError("x"), ConfigError("x")], 3),
    ],
)
def test_the_exit_code_says_whether_a_restart_helps(ends: list[BaseException | None], code: int) -> None:
    assert exit_code_of_several(ends) == code


def test_a_local_session_has_the_task_slots_of_separate_processes() -> None:
    assert task_slots([8, 8, 8], cores=2) == 6
    assert task_slots([1, 1], cores=4) == 4
    assert task_slots([1, 8], cores=4) == 5
