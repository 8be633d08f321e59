from __future__ import annotations

import subprocess
import sys

import pytest
from benchmarks.meter import ProcessTree

_BURN = "import time\nwhile time.process_time() < {}: pass\nprint('done', flush=True)\ninput()"


@pytest.mark.slow
def test_what_an_ended_process_was_last_seen_to_take_still_counts() -> None:
    command = [sys.executable, "-c", _BURN.format(0.3)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = ProcessTree(process.pid)
        before = tree.cpu_s()
        assert tree.pss_bytes() > 1_000_000
        process.communicate(b"\n")
    assert before >= 0.25, "counted in ticks of 0.01 s"
    assert tree.cpu_s() == before
    assert tree.pss_bytes() == 0
