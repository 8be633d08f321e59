"""The planner's process where Spark stops the query and closes the connection: no response is waited for, and none is missed."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WORKER = """
import json, socket, sys
from pyspark import daemon
from pyspark.serializers import CloudPickleSerializer, write_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner
from shallow_mirror.streaming.sources.planned_ranges import PlannedRanges
from shallow_mirror.streaming.sources.stream_reader import PlannedStreamReader

is_closed = sys.argv[2] == "closed"
of_spark, of_worker = socket.socketpair()

def latest(reader, start, limit):
    if is_closed:
        of_spark.close()  # the query is stopped while the planner works
    return reader.fails()

PlannedStreamReader.latestOffset = latest
PlannedStreamReader.fails = lambda reader: start if is_closed else 1 / 0
if sys.argv[1] == "as PySpark has it":
    PlannedStreamReader.__init__ = lambda reader, options: None
start = {"map_id": "m"}
with of_spark.makefile("wb") as requests:
    write_with_length(b"%d.%d" % sys.version_info[:2], requests)
    runner.setup_spark_files = lambda infile: None
    runner.read_command = lambda serializer, infile: PlannedRanges({})
    write_with_length(b'{"type":"struct","fields":[]}', requests)
    write_int(1000, requests)
    write_int(runner.LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID, requests)
    write_with_length(json.dumps(start).encode(), requests)
    write_with_length(json.dumps({"_type": "ReadAllAvailable"}).encode(), requests)
sys.argv[1] = runner.__name__
code = daemon.worker(of_worker, True)
print(code, b"ZeroDivisionError" in of_spark.recv(65536))
"""


def _run(handler: str, connection: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WORKER, handler, connection]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("handler", ["as PySpark has it", "as the planner has it"])
def test_a_planner_whose_query_was_stopped_while_it_planned_ends_without_a_traceback(handler: str) -> None:
    ended = _run(handler, "closed")
    if handler == "as PySpark has it":
        assert "BrokenPipeError" in ended.stderr, "this PySpark has an end of its own: nothing is needed"
    else:
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.slow
def test_an_error_of_the_planner_still_reaches_spark() -> None:
    ended = _run("as the planner has it", "open")
    assert (ended.stdout, ended.stderr) == ("-1 True\n", "")
