"""Planner process: its end where a stop of the query has closed the connection to Spark while a plan was made.

Spark kills the process a moment later. One that answers before that finds the connection closed, and PySpark prints the error of
every flush with its traceback on the standard error of the run, although the run does not wait for the answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, Any

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_HANDLER = "handle_worker_exception"


def end_quietly_when_stopped() -> None:
    """Let this process end without a traceback once Spark has closed the connection; no more than once, only in the planner.

    PySpark calls the handler with every error that leaves its loop, and flushes the connection itself afterwards.
    """
    runner: Any = sys.modules.get(RUNNER) or sys.modules.get("__main__")
    handler = getattr(runner, _HANDLER, None)
    if handler is None or isinstance(handler, _QuietHandler):
        return  # not the planner's process, or of another Spark, whose own end stands
    setattr(runner, _HANDLER, _QuietHandler(handler))


class _QuietHandler:
    def __init__(self, handler: Callable[[BaseException, IO[bytes]], None]) -> None:
        self._handler = handler

    def __call__(self, error: BaseException, outfile: IO[bytes]) -> None:
        self._handler(error, outfile)
        try:
            outfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            # Not by an exception: PySpark's daemon would flush the connection once more, and print both errors.
            os._exit(0)
