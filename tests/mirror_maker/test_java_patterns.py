"""Java's regular expressions in Python."""

from __future__ import annotations

import re

import pytest

from shallow_mirror.mirror_maker.java_patterns import as_python, split_list


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders", "orders", "orders2"),
        (r"bills-\d+", "bills-12", "bills-x"),
        (r"\Qa.b\E.*", "a.bc", "axbc"),
        (r"\Qa.b", "a.b", "axb"),
        (r"(?<team>a|b)\.\k<team>", "a.a", "a.b"),
        (r"(?<!x)abc", "abc", "xabc"),
        (r"[\-\.]internal", "-internal", "xinternal"),
        (r"a++b", "aab", "b"),
    ],
)
def test_a_pattern_matches_what_it_matches_in_java(pattern: str, matching: str, other: str) -> None:
    converted, problem = as_python(pattern)
    assert problem is None
    assert re.fullmatch(converted, matching)
    assert not re.fullmatch(converted, other)


@pytest.mark.parametrize("pattern", [r"\p{Alpha}+", "[a-z&&[^b]]", "(", r"a\Gb", "[a"])
def test_a_pattern_without_counterpart_has_a_problem(pattern: str) -> None:
    assert as_python(pattern)[1] is not None


def test_a_list_is_split_at_every_comma() -> None:
    assert split_list(" a , b.*,, c{1,2} ") == ["a", "b.*", "c{1", "2}"]
