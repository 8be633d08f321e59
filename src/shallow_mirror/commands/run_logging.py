"""Log lines of a command that runs Spark."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from shallow_mirror.logging_setup import LOG_FORMAT_VARIABLE, LogFormat
from shallow_mirror.stderr_capture import stderr_as_json


@contextlib.contextmanager
def logging_as(log_format: LogFormat) -> Iterator[None]:
    """Log in this format in the block, and from now on in Spark's Python workers."""
    os.environ[LOG_FORMAT_VARIABLE] = log_format
    with stderr_as_json(logging.getLogger().level) if log_format == "json" else contextlib.nullcontext():
        yield
