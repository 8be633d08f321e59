"""Whether patterns select all names with a prefix: never said of patterns that leave one of them out."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.access.acl_rules import covers_prefix


@pytest.mark.parametrize(
    ("prefix", "include", "exclude"),
    [
        ("", [".*"], []),
        ("", ["orders", ".*"], []),
        ("orders", ["orders.*"], []),
        ("orders.eu", [r"orders\..*"], []),
        ("orders-", ["orders-.*"], ["bills.*", "secret", "order"]),
        ("orders", ["......*"], []),
    ],
)
def test_a_prefix_is_covered(prefix: str, include: list[str], exclude: list[str]) -> None:
    assert covers_prefix(prefix, include, exclude)


@pytest.mark.parametrize(
    ("prefix", "include", "exclude"),
    [
        ("", ["orders.*"], []),
        ("ord", ["orders.*"], []),
        ("orders", ["orders"], []),
        ("orders", [r"orders\..*"], []),
        ("orders", [r"orders\.*"], []),
        ("orders", ["orders|bills.*"], []),
        ("orders", ["(?!orders-x).*"], []),
        ("orders", ["orders.+"], []),
        ("orders", ["orders$.*"], []),
        ("orders", ["bo*.*"], []),
        ("orders", ["o.*.*"], []),
        ("", [".*"], ["secret"]),
        ("orders", [".*"], ["orders-eu"]),
        ("orders", [".*"], ["ord.*"]),
        ("orders", [".*"], [".*-private"]),
    ],
)
def test_a_prefix_is_not_covered(prefix: str, include: list[str], exclude: list[str]) -> None:
    assert not covers_prefix(prefix, include, exclude)


_pieces = st.sampled_from(["a", "b", ".", r"\.", ".*", "a*", "a+", "|", "[ab]", "(a)", "-", "$", r"\-", "a?", "{2}"])


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


_regexes = st.lists(_pieces, min_size=1, max_size=4).map("".join).filter(_is_pattern)
_NAMES = ["".join(letters) for length in range(5) for letters in itertools.product("ab.-", repeat=length)]


@pytest.mark.slow
@given(st.text("ab.-", max_size=3), st.lists(_regexes, min_size=1, max_size=2), st.lists(_regexes, max_size=2))
def test_every_name_with_a_covered_prefix_is_selected(prefix: str, include: list[str], exclude: list[str]) -> None:
    if not covers_prefix(prefix, include, exclude):
        return
    for name in _NAMES:
        if name.startswith(prefix):
            assert any(re.fullmatch(pattern, name) for pattern in include)
            assert not any(re.fullmatch(pattern, name) for pattern in exclude)
