"""Driver: standard error as JSON lines, including output of Spark's JVM, its Python workers and C libraries."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shallow_mirror.logging_setup import JsonFormatter, begin_logging

_POLL_S = 0.1
_READ_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20


@contextmanager
def stderr_as_json(level: int = logging.INFO) -> Iterator[None]:
    """Write JSON lines until the block ends. Our own go out directly; other output goes through a pipe, a JSON line each."""
    sys.stderr.flush()
    kept = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    out = os.fdopen(os.dup(kept), "w", encoding="utf-8", buffering=1)
    is_over = threading.Event()
    pump = threading.Thread(target=_pump, args=(reading, kept, is_over), name="standard error", daemon=True)
    pump.start()
    begin_logging("json", level, out)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        is_over.set()
        pump.join()
        begin_logging("json", level)
        out.close()
        os.close(reading)
        os.close(kept)


def _pump(reading: int, out: int, is_over: threading.Event) -> None:
    """Copy lines until `is_over` and nothing is left: children may keep the other end open for longer."""
    rest = b""
    while True:
        is_last_look = is_over.is_set()
        if not select.select([reading], [], [], 0 if is_last_look else _POLL_S)[0]:
            if is_last_look:
                break
            continue
        read = os.read(reading, _READ_BYTES)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\n")
        if len(rest) > _LONGEST_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        _write(out, lines)
    _write(out, [rest])


def _write(out: int, lines: list[bytes]) -> None:
    data = b"".join(as_json(line) + b"\n" for line in lines if line.strip())
    while data:
        data = data[os.write(out, data) :]


def as_json(line: bytes) -> bytes:
    """Return a line as JSON; one that another process of ours wrote stays as it is. Pure."""
    text = line.decode("utf-8", errors="replace").rstrip()
    if text.startswith("{"):
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if isinstance(document, dict) and {"time", "level", "message"} <= document.keys():
            return text.encode()
    record = logging.LogRecord("stderr", logging.INFO, "", 0, text, None, None)
    return JsonFormatter().format(record).encode()
