"""One run of a mirror on real clusters in a process of its own, which SIGKILL ends at a chosen effect.

A process of Python's fork server, so that nothing is imported again. `without_spark` takes the place of Spark, with its slots
in this process as well: one process counts all effects.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fakes.kafka_codec import API_KEYS
from tests.faults import without_spark
from tests.faults.mirror_main import end_with
from tests.operators.direct_transport import READS
from tests.operators.lives import Life

from shallow_mirror.broker.auth import connection_factory
from shallow_mirror.broker.net import Transport
from shallow_mirror.broker.net.transport import Part, Take
from shallow_mirror.checkpoints.tables.backends.deltalake_backend import DeltalakeBackend
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.streaming.runs import Mirror, mirror_query
from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.streaming.watch.run_reporter import RunReporter

MOST_WAITS = 30
"""So often a run may try again. Each wait is short here, and brokers need some seconds to delete and create topics."""

_LONGEST_WAIT_S = 1.0
_LONGEST_RUN_S = 120.0
_PRELOADED = [
    "tests.operators.real_run",
    "tests.operators.scripts",
    "tests.faults.campaigns",
    "tests.faults.document",
    "tests.random_archives.run",
    "pandas",
]
"""With what the main module of `make faults` imports: each process executes that module again."""
_ANSWER_MS = 10_000.0
_READ_KEYS = frozenset(API_KEYS[api] for api in READS)
_TABLE_EFFECTS: Sequence[tuple[type, Sequence[str]]] = (
    (DeltalakeWriter, ("create", "append", "delete")),
    (DeltalakeBackend, ("append", "append_durably", "delete")),
)


class RunStuckError(Exception):
    """A run that tries the same again and again, does not end, or ends with an error that is none of the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """`stay_s`: how long the run lasts; 0: up to the log ends of its start. `events_at`: requests that are waited at."""

    document: dict[str, Any]
    folder: Path
    life: Life
    events_at: frozenset[int]
    stay_s: float


def performed(order: RunOrder, on_request: Callable[[int], None]) -> MirrorError | None:
    """Run a mirror; return the error that ended it. The life of `order` is over where it was killed.

    `on_request` is called with the number of each request of `events_at`, before it is sent. Raises RunStuckError.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    own, given = context.Pipe()
    process = context.Process(target=_run, args=(given, order), daemon=True)
    process.start()
    given.close()
    try:
        while True:
            if not own.poll(_LONGEST_RUN_S):
                raise RunStuckError(f"the run has not ended after {_LONGEST_RUN_S:.0f} s")
            what, *details = own.recv()
            if what != "request":
                break
            on_request(*details)
            own.send(None)
    except (EOFError, ConnectionResetError):
        process.join()
        if process.exitcode != -signal.SIGKILL or order.life.kill_at is None:
            raise RunStuckError(f"the run ended with {process.exitcode}: {_log_tail(order.folder)}") from None
        order.life.is_over = True
        return None
    finally:
        process.kill()
        process.join()
        own.close()
    if what == "error":
        return _error_of(*details)
    if what != "done":
        raise RunStuckError(*details)
    return None


def _log_tail(folder: Path) -> str:
    return (folder / "run.log").read_text(encoding="utf-8", errors="replace")[-1000:]


def _error_of(kind: type[MirrorError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> MirrorError:
    """Errors take their fields by keyword, which pickle does not."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    return error


# --- in the process of the run ---


def _run(connection: Connection, order: RunOrder) -> None:
    os.setsid()
    log = os.open(order.folder / "run.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    threading.Thread(target=end_with, args=(os.getppid(),), name="harness", daemon=True).start()
    scratch = order.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    os.environ["TMPDIR"], tempfile.tempdir = str(scratch), None
    effects = _Effects(connection, order)
    _count_effects(effects)
    _hurry()
    mirror = Mirror(MirrorConfig.from_document(order.document, folder=order.folder))
    bounded: dict[str, Any] = {"for_seconds": order.stay_s} if order.stay_s else {"available_now": True}
    try:
        mirror.run(_Session(2), **bounded)
        result: tuple[Any, ...] = ("done",)
    except MirrorError as error:
        result = "error", type(error), error.args, error.__dict__
    except _WaitsForeverError as waiting:
        result = "waits", f"the run waits for ever: {waiting}"
    except BaseException:  # noqa: BLE001 - a finding, which the other process reports
        result = "failed", traceback.format_exc()[-1500:]
    with effects.lock:
        effects.life = Life()  # what still runs is no part of the run
        connection.send(result)
    os._exit(0)


class _WaitsForeverError(BaseException):
    """Not an `Exception`: the supervisor would retry it."""


class _Effects:
    """Counts requests and effects over all threads of the process, and ends it at the chosen effect."""

    def __init__(self, connection: Connection, order: RunOrder) -> None:
        self._connection, self.life, self._events_at = connection, order.life, order.events_at
        self._requests = 0
        self.lock = threading.RLock()

    def perform(self, effect: Callable[[], Any], wait: Callable[[], object] | None = None) -> Any:
        """`wait`: returns when others know of the effect, where `effect` does not."""
        with self.lock:
            self.life.effects += 1
            is_last = self.life.effects == self.life.kill_at
        if is_last and not self.life.is_behind:
            self._die()
        result = effect()
        if is_last:
            if wait is not None:
                wait()
            self._die()
        return result

    def before_request(self) -> None:
        with self.lock:
            self._requests += 1
            if self._requests in self._events_at:
                self._connection.send(("request", self._requests))
                self._connection.recv()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class _CountedTransport(Transport):
    effects: _Effects
    _begun = b""
    """Of a frame whose rest is yet to be sent."""

    def send_parts(self, parts: Sequence[Part], deadline: Deadline, take: Take | None = None) -> None:
        keys = self._keys_of(b"".join([self._begun, *parts]))
        for _ in keys:
            self.effects.before_request()
        send = super().send_parts
        if all(key in _READ_KEYS for key in keys):
            send(parts, deadline, take)
            return

        # Killed behind it, the broker has answered, and the response is not read.
        self.effects.perform(lambda: send(parts, deadline, take), lambda: self.wait_readable(_ANSWER_MS))

    def _keys_of(self, data: bytes) -> list[int]:
        keys, pos = [], 0
        while len(data) - pos >= 4 and (end := pos + 4 + int.from_bytes(data[pos : pos + 4], "big")) <= len(data):
            keys.append(int.from_bytes(data[pos + 4 : pos + 6], "big"))
            pos = end
        self._begun = data[pos:]
        return keys


def _count_effects(effects: _Effects) -> None:
    _CountedTransport.effects = effects
    setattr(connection_factory, "Transport", _CountedTransport)  # noqa: B010 - it is no export
    for kind, names in _TABLE_EFFECTS:
        for name in names:
            setattr(kind, name, _counted(getattr(kind, name), effects))


def _counted(method: Callable[..., Any], effects: _Effects) -> Callable[..., Any]:
    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        return effects.perform(lambda: method(self, *arguments, **named))

    return counted


def _hurry() -> None:
    """Shorten waits, and bound their number."""
    wait, waits = Supervisor.wait, list[str]()

    def short_wait(supervisor: Supervisor, seconds: float) -> bool:
        if len(waits) > MOST_WAITS:
            raise _WaitsForeverError(waits[-1])
        return wait(supervisor, min(seconds, _LONGEST_WAIT_S))

    on_retry = RunReporter.on_retry

    def record_retry(reporter: Any, step: str, error: MirrorError, since_ms: int, pause_s: float) -> None:
        waits.append(f"{step}: {error}")
        on_retry(reporter, step, error, since_ms, pause_s)

    Supervisor.wait = short_wait  # type: ignore[method-assign,assignment]
    RunReporter.on_retry = record_retry  # type: ignore[method-assign,assignment]
    mirror_query.FOLLOW_MS = 300.0  # type: ignore[attr-defined]


class _Here(Executor):
    """Performs a slot when it is handed over, in this process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - raised where the result is taken
            future.set_exception(error)
        return future


class _Session(without_spark.Session):
    @staticmethod
    def executor(_workers: int) -> Executor:
        return _Here()
