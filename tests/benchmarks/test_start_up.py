"""What the benchmark of the start reads from the mirror's log."""

from __future__ import annotations

from datetime import datetime

import pytest
from benchmarks.start_up import Start, steps_of, table

_LOG = """2026-01-02 03:04:05,250 INFO shallow_mirror.x: start: starting Spark (its log: /a/b)
WARNING: Using incubator modules: jdk.incubator.vector
2026-01-02 03:04:09,000 INFO shallow_mirror.x: start: waiting for the first plan
2026-01-02 03:05:09,000 INFO shallow_mirror.x: start: waiting for the first plan
"""


def test_a_step_begins_where_the_log_names_it_first() -> None:
    began = datetime(2026, 1, 2, 3, 4, 5).timestamp()
    assert steps_of(_LOG, began) == {"starting Spark": pytest.approx(0.25), "waiting for the first plan": pytest.approx(4.0)}


def test_the_table_has_medians() -> None:
    starts = [Start(seconds, 10.0, 1000.0, {"starting Spark": seconds / 10}) for seconds in (8.0, 20.0, 9.0)]
    lines = table(starts)
    assert lines[0].split() == ["starting", "Spark", "0.90", "s"]
    assert lines[1].endswith("9.00 s (8.0 to 20.0)")
