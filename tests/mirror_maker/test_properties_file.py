"""Properties files as Java reads them, and the JSON of a connector."""

from __future__ import annotations

import pytest

from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.properties_file import parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb: 2\nc 3\nd\n", {"a": "1", "b": "2", "c": "3", "d": ""}),
        ("  a  =  1 2 \n", {"a": "1 2 "}),
        ("# x=1\n! y=2\n\n \t\na=1", {"a": "1"}),
        ("a=1,\\\n   2,\\\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
        ("a=\\u00e9\\t\\n\\q", {"a": "é\t\nq"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\nb=2\na=3", {"b": "2", "a": "3"}),
        ("east->west.topics = x#y", {"east->west.topics": "x#y"}),
        ("a==b", {"a": "=b"}),
        ("", {}),
        ('{"name": "m", "config": {"a": "1", "b": true, "c": 3, "d": null}}', {"a": "1", "b": "true", "c": "3"}),
        (' {"a": "1"}', {"a": "1"}),
    ],
)
def test_names_and_values_are_those_of_java(text: str, expected: dict[str, str]) -> None:
    parsed = parse(text, "f")
    assert parsed == expected
    assert list(parsed) == list(expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a=1\nb=\\u12g4", r"f, line 2: \\u needs four hexadecimal digits"),
        ("a=\\u12", r"f, line 1: \\u needs four"),
        ('{"a": ', "f begins as JSON, and is not"),
        ('{"config": {"a": {"b": 1}}}', "f is no configuration of a connector"),
        ('{"config": [1]}', "f is no configuration of a connector"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(text, "f")
