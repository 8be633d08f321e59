"""Test support: the result of one round of faults."""

from __future__ import annotations

from tests.faults.results import Result

KILLED = Result(
    campaign="kills",
    engine="Spark",
    fault="SIGKILL",
    step="6 decided",
    ending="started again",
    records=1200,
    acknowledged=1100,
    unknown=1,
    differences=(),
    left_behind=(),
    seconds=3.5,
)
