"""How many examples or schedules a test runs that sets their number."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""Examples of a test that sets no number, by Hypothesis's default."""


def examples(count: int) -> int:
    """Return `count`, and with the profile `quick` of `make check` the share of it that this profile runs of any test."""
    return max(1, count * settings().max_examples // USUAL)
