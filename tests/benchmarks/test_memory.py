"""What of many looks is shown."""

from __future__ import annotations

from benchmarks.memory import table


def test_growth_shows_as_medians_that_rise_from_left_to_right() -> None:
    looks = [{"JVM": 100.0 + at // 2, "all": 200.0 + at // 2} for at in range(12)]
    assert [line.split() for line in table(looks)] == [
        ["JVM", *(str(100 + at) for at in range(6))],
        ["all", *(str(200 + at) for at in range(6))],
    ]
