"""What surrounds a command: its Spark session, its log lines, Ctrl-C and SIGTERM, and imports that it does not need."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import typer

from shallow_mirror.commands.options import EXIT_INTERRUPTED
from shallow_mirror.logging_setup import LOG_FORMAT_VARIABLE, LogFormat
from shallow_mirror.stderr_capture import stderr_as_json

if TYPE_CHECKING:
    from typing import Protocol

    from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig

    class Stoppable(Protocol):
        def stop(self) -> None: ...


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ImportBlocker(Loader):
    """Hides pandas, which pyarrow imports only to check whether a value is one of its arrays, and kafka-python's clients."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("commands that only read run without pandas", name=name)
        spec = PathFinder.find_spec(name) if name == "kafka" else None
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Skip the package's own file, which imports the clients; its modules can be imported all the same."""

    @classmethod
    def install(cls) -> None:
        sys.meta_path.insert(0, cls())

    @staticmethod
    def remove() -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ImportBlocker)]


@contextlib.contextmanager
def session_for(config: MirrorConfig | ArchiveConfig | RestoreConfig, *, is_writing: bool = False) -> Iterator[Any]:
    """Yield the session; None for tables that need no Spark, and then nothing of it is imported."""
    if not is_writing and not any(location.is_read_by_spark for location in config.table_locations):
        yield None
        return
    ImportBlocker.remove()
    from shallow_mirror.streaming import session_for_tables

    with session_for_tables(config, submitted_session(), is_writing=is_writing) as spark:
        yield spark


def submitted_session() -> Any:
    """Return the session of `spark-submit`; None when the mirror builds its own."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


@contextlib.contextmanager
def logging_as(log_format: LogFormat) -> Iterator[None]:
    """Log in this format in the block, and from now on in Spark's Python workers."""
    os.environ[LOG_FORMAT_VARIABLE] = log_format
    with stderr_as_json(logging.getLogger().level) if log_format == "json" else contextlib.nullcontext():
        yield


def stop_on_signals(run: Stoppable) -> None:
    """Stop a mirror or an archive at the first signal; the second one ends the process."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)  # a second signal ends this process at once, and Spark with it
        run.stop()

    for number in _STOP_SIGNALS:
        signal.signal(number, stop)


@contextlib.contextmanager
def interruptible(state: str) -> Iterator[None]:
    """End the command at Ctrl-C and SIGTERM with exit code 130. `state`: what an interrupted command leaves, for the message."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {state}", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
