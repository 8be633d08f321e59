"""Log lines as JSON: every one of the process, whoever writes it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shallow_mirror.logging_setup import JsonFormatter, fields
from shallow_mirror.stderr_capture import as_json

_PROCESS = """
import logging, os, subprocess, sys, threading, warnings
from shallow_mirror.logging_setup import begin_logging, begin_logging_from_environment, print_error
from shallow_mirror.errors import ConfigError
from shallow_mirror.stderr_capture import stderr_as_json
log = logging.getLogger("ours")
with stderr_as_json():
    log.info("first")
    os.write(2, b"by a C library\\nand with \\xff\\n\\n")
    child = "from shallow_mirror.logging_setup import *; begin_logging_from_environment(); logging.getLogger('w').warning('by a worker')"
    subprocess.run([sys.executable, "-c", child], check=True, env={**os.environ, "SHALLOW_MIRROR_LOG_FORMAT": "json"})
    warnings.warn("by Python")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('by a child, without an end')"], check=True)
print_error(ConfigError(["one", "two"]))
raise ValueError("nobody caught this")
"""


def _parsed_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_of_a_process_is_a_json_document_also_those_of_children_and_of_uncaught_errors(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _PROCESS], capture_output=True, text=True, timeout=60, check=False)
    lines = _parsed_lines(ended.stderr)
    assert ended.returncode == 1
    by_message = {line["message"]: line for line in lines}
    assert {"first", "by a C library", "and with \N{REPLACEMENT CHARACTER}", "by a child, without an end", "by a worker"} < set(
        by_message
    )
    assert (by_message["by a worker"]["logger"], by_message["by a worker"]["level"]) == ("w", "WARNING")
    assert by_message["by a C library"]["logger"] == "stderr"
    assert any(line["logger"] == "py.warnings" and "by Python" in line["message"] for line in lines)
    assert by_message["ZeroDivisionError: division by zero"]["error"] == "ZeroDivisionError"
    assert (by_message["one\ntwo"]["level"], by_message["one\ntwo"]["error"]) == ("ERROR", "ConfigError")
    last = lines[-1]
    assert (last["level"], last["error"], last["message"]) == ("CRITICAL", "ValueError", "ValueError: nobody caught this")
    assert "Traceback" in last["traceback"]


def test_a_line_has_its_fields_beside_the_message_and_a_time_with_zone() -> None:
    record = logging.makeLogRecord(
        {"name": "n", "levelname": "INFO", "msg": "%d é", "args": (3,), "created": 1.5} | fields(a={"b": 1})
    )
    document = json.loads(JsonFormatter().format(record))
    assert document == {
        "time": "1970-01-01T00:00:01.500Z", "level": "INFO", "logger": "n", "message": "3 é", "pid": record.process, "a": {"b": 1},
    }  # fmt: skip


@pytest.mark.parametrize("line", ["{", '{"a": 1}', "[1]", '{"time": 1', "WARNING: Using incubator modules"])
def test_what_only_looks_like_a_line_of_ours_is_the_message_of_one(line: str) -> None:
    assert json.loads(as_json(line.encode()))["message"] == line
