"""Names in sentences of a conductor."""

from __future__ import annotations

import re

import pytest

from shallow_mirror.migration.sentences import shown


@pytest.mark.parametrize("name", ["billing", "orders.v-2", "a group (old) \\ new"])
def test_a_pattern_that_matches_one_name_is_shown_as_that_name(name: str) -> None:
    assert shown([re.escape(name), "second"]) == f"{name}, second"


@pytest.mark.parametrize("pattern", [r"orders\..*", r"\d+", "a|b", r"orders\.x?"])
def test_a_pattern_of_several_names_is_shown_as_it_is(pattern: str) -> None:
    assert shown([pattern]) == pattern
