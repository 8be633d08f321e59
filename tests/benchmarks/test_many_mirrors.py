"""What the benchmark of many mirrors prints."""

from __future__ import annotations

from benchmarks.many_mirrors import Figures, table


def test_the_table_has_the_sum_of_memory_and_each_role() -> None:
    figures = Figures(
        start_s=12.34,
        start_cpu_s=20.0,
        idle_cpu_s_per_minute=3.21,
        pss_mb={"planner": 40.0, "JVM": 500.4, "all": 540.4, "largest worker": 30.0},
    )
    assert [line.split()[-2:] for line in table(figures)] == [
        ["12.3", "s"],
        ["20.0", "s"],
        ["3.2", "s"],
        ["540", "MB"],
        ["500", "MB"],
        ["40", "MB"],
    ]
