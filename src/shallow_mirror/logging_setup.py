"""Every process: the format of log lines: text, or one JSON document per line.

In JSON a line has `time`, `level`, `logger`, `message`, `pid`, where an exception is logged `error` and `traceback`, and the
fields that the caller gave with `fields(...)`. Where several mirrors run in one process, lines about one of them have its name:
in JSON as `mirror`, in text in front of the message.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

from shallow_mirror.log_context import current_name

LogFormat = Literal["text", "json"]

LOG_FORMAT_VARIABLE = "SHALLOW_MIRROR_LOG_FORMAT"
"""Environment variable with the format for processes that this one starts."""

_log = logging.getLogger("shallow_mirror")

_FIELDS = "shallow_mirror_fields"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(mirror)s%(message)s"


def fields(**values: Any) -> dict[str, Any]:
    """Return the `extra` of a log call: fields of a JSON line besides its message. Text leaves them out."""
    return {_FIELDS: values}


class TextFormatter(logging.Formatter):
    """Puts the name of the mirror, if there is one, in front of the message."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        name = current_name()
        record.mirror = "" if name is None else f"[{name}] "
        return super().format(record)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document: dict[str, Any] = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **({} if (name := current_name()) is None else {"mirror": name}),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            document["error"] = record.exc_info[0].__name__
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False, default=str)


def begin_logging(log_format: LogFormat, level: int = logging.INFO, stream: Any = None) -> None:
    """Configure logging of the process, to `stream` or standard error. In JSON also Python's warnings and uncaught errors."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs errors that are raised here as well
    if log_format == "json":
        logging.captureWarnings(True)
        sys.excepthook, threading.excepthook = _log_uncaught, _log_uncaught_of_thread


def begin_logging_from_environment() -> None:
    """Configure logging of a child process by its environment, with nothing below a warning."""
    begin_logging("json" if os.environ.get(LOG_FORMAT_VARIABLE) == "json" else "text", logging.WARNING)


def is_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def print_error(error: Exception) -> None:
    """Log or print the last line of a process that an error of ours ended."""
    if is_json():
        _log.error("%s", error, extra=fields(error=type(error).__name__))
    else:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    _log.critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _log_uncaught_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _log_uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
