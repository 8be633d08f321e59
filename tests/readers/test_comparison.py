"""The verdict about what a consumer read."""

from __future__ import annotations

import pytest
from tests.readers.comparison import ReadRecord, judge, parse_records, parse_version

EXPECTED = [ReadRecord(3, "a"), ReadRecord(4, "b"), ReadRecord(9, "c")]


def test_the_same_records_are_correct() -> None:
    assert judge(EXPECTED, EXPECTED, None) == "correct"


@pytest.mark.parametrize(
    ("read", "verdict"),
    [
        (EXPECTED[:2], "fails: 1 of 3 records are missing, the first at offset 9"),
        ([], "fails: 3 of 3 records are missing, the first at offset 3"),
        ([*EXPECTED, EXPECTED[0]], "fails: 1 records were returned more than once"),
        (EXPECTED[::-1], "fails: records are out of order"),
        ([*EXPECTED[:2], ReadRecord(9, "x")], "fails: the record at offset 9 has the value x, not c"),
        (
            [ReadRecord(-1073741824, "null"), *EXPECTED],
            "fillers visible: 1 records without an original, the first at offset -1073741824",
        ),
        (
            [ReadRecord(0, "null"), EXPECTED[0]],
            "fillers visible: 1 records without an original, the first at offset 0; "
            "fails: 2 of 3 records are missing, the first at offset 4",
        ),
    ],
)
def test_differences_are_named(read: list[ReadRecord], verdict: str) -> None:
    assert judge(EXPECTED, read, None) == verdict


def test_a_program_that_failed_is_not_correct_whatever_it_read() -> None:
    assert judge(EXPECTED, EXPECTED, "exit code 1: refused") == "fails: exit code 1: refused"


def test_only_whole_lines_of_records_count() -> None:
    output = "version\t2.2.4\nlog line\nrecord\t3\ta\nrecord\t-7\tnull\nrecord\t4"
    assert parse_records(output) == [ReadRecord(3, "a"), ReadRecord(-7, "null")]
    assert parse_version(output) == "2.2.4"
    assert parse_version("record\t3\ta\n") is None


def test_how_it_failed_is_named_with_what_is_missing() -> None:
    verdict = "fails: still waits after 60 s, 1 of 3 records are missing, the first at offset 9"
    assert judge(EXPECTED, EXPECTED[:2], "still waits after 60 s") == verdict
