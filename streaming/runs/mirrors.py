"""Driver: several mirrors in one process, on one Spark session, each in its own thread. One may end without the others."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import MirrorError, SparkLostError
from shallow_mirror.log_context import log_name
from shallow_mirror.logging_setup import fields
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.micro_batches import raising_lost_jvm
from shallow_mirror.streaming.runs.mirror import Mirror
from shallow_mirror.streaming.spark.shared_session import SharedSession, shared_session

_log = logging.getLogger(__name__)


class RunningMirror(Protocol):
    """The interface of `Mirror` that is used here."""

    def stop(self) -> None: ...
    def run(self, spark: Any, *, available_now: bool, for_seconds: float | None) -> None: ...


OpenSession = Callable[[Sequence[MirrorConfig], Any], AbstractContextManager[SharedSession]]


@dataclass(frozen=True, slots=True)
class MirrorEnd:
    """How a mirror ended. `error` None: it was stopped, or is done."""

    mirror: str
    error: BaseException | None


class Mirrors:
    """Each has its tables, checkpoint, ownership, retries and reports, as in a process of its own."""

    def __init__(
        self,
        configs: Sequence[MirrorConfig],
        *,
        make: Callable[[MirrorConfig], RunningMirror] = Mirror,
        open_session: OpenSession = shared_session,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configs = tuple(configs)
        self._mirrors = {config.mirror: make(config) for config in configs}
        self._open_session = open_session
        self._clock = clock

    def stop(self) -> None:
        """Request the end of every mirror at its next micro-batch boundary. Safe in a signal handler."""
        for mirror in self._mirrors.values():
            mirror.stop()

    def run(self, spark: Any = None, *, available_now: bool = False, for_seconds: float | None = None) -> tuple[MirrorEnd, ...]:
        """Run all mirrors, and return how each ended once all have, in the order of their ends.

        `for_seconds` includes the start of Spark. Raises ConfigError, JarFetchError if the session cannot start.
        """
        ends_at = math.inf if for_seconds is None else self._clock() + for_seconds

        def run(mirror: RunningMirror, name: str) -> None:
            left_s = None if for_seconds is None else max(0.0, ends_at - self._clock())
            with log_name(name), raising_lost_jvm(session.log_file):
                mirror.run(session.of_mirror(name), available_now=available_now, for_seconds=left_s)

        with (
            self._open_session(self._configs, spark) as session,
            ThreadPoolExecutor(len(self._mirrors), thread_name_prefix="mirror") as threads,
        ):
            _log.info("starting %s: %s", counted(len(self._mirrors), "mirror"), ", ".join(self._mirrors))
            running = {threads.submit(run, mirror, name): name for name, mirror in self._mirrors.items()}
            try:
                return tuple(self._ends(running, session))
            finally:
                self.stop()  # without effect where all have ended

    def _ends(self, running: dict[Future[None], str], session: SharedSession) -> Iterator[MirrorEnd]:
        """Yield the end of each mirror, and log it at once: the process may run for long without it."""
        left = set(running.values())
        for future in as_completed(running):
            end = MirrorEnd(running[future], future.exception())
            left.remove(end.mirror)
            _log_end(end, left)
            if isinstance(end.error, SparkLostError) and left:
                where = "" if session.log_file is None else f" (its log: {session.log_file})"
                _log.error("ending the other mirrors: they need the same Spark session%s", where)
                self.stop()
            yield end


def _log_end(end: MirrorEnd, left: set[str]) -> None:
    rest = f"still running: {', '.join(sorted(left))}" if left else "no mirror is left"
    with log_name(end.mirror):
        match end.error:
            case None:
                _log.info("ended; %s", rest)
            case MirrorError() as error:
                name = type(error).__name__
                _log.error("ended by %s: %s; %s", name, error, rest, extra=fields(error=name))
            case error:
                _log.error("ended by an unexpected error; %s", rest, exc_info=error)
