from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.demo.history import DifferenceKind, History, compare_histories, mistranslated, record_digest
from shallow_mirror.types import TopicPartition

ORDERS_0 = TopicPartition("orders", 3)
K = DifferenceKind


def history(records: str | list[int], step: int = 1) -> History:
    """Return a record per letter or number; offsets 0, step, 2·step and so on."""
    numbers = [ord(record) if isinstance(record, str) else record for record in records]
    return History.of((index * step, number.to_bytes(16, "big")) for index, number in enumerate(numbers))


def kinds(source: str | list[int], target: str | list[int], aborted: str = "") -> Counter[DifferenceKind]:
    bad = {ord(letter).to_bytes(16, "big") for letter in aborted}
    return Counter(
        difference.kind for difference in compare_histories(ORDERS_0, history(source), history(target), bad).differences
    )


@pytest.mark.parametrize(
    ("source", "target", "aborted", "expected"),
    [
        ("abcdef", "abcdef", "", {}),
        ("", "", "", {}),
        ("aabba", "aabba", "", {}),
        ("abcdef", "abdef", "", {K.LOST: 1}),
        ("abcdef", "abcd", "", {K.LOST: 2}),
        ("abcdef", "", "", {K.LOST: 6}),
        ("abcdef", "abccdef", "", {K.DUPLICATED: 1}),
        ("abc", "abcabc", "", {K.DUPLICATED: 3}),
        ("abcdef", "abdcef", "", {K.REORDERED: 1}),
        ("abcdef", "bcdefa", "", {K.REORDERED: 1}),
        ("abcdef", "abXdef", "", {K.CHANGED: 1}),
        ("abcdef", "XYZdef", "", {K.CHANGED: 3}),
        ("abcdef", "abcdefX", "", {K.EXTRA: 1}),
        ("", "XY", "", {K.EXTRA: 2}),
        ("abcdef", "abcXdef", "X", {K.ABORTED_VISIBLE: 1}),
        ("abcdef", "abXdef", "X", {K.ABORTED_VISIBLE: 1, K.LOST: 1}),
        ("abcdef", "bcdefX", "", {K.LOST: 1, K.EXTRA: 1}),
        ("aab", "ab", "", {K.LOST: 1}),
        ("abcdefgh", "bbdcefXX", "", {K.LOST: 1, K.DUPLICATED: 1, K.REORDERED: 1, K.CHANGED: 2}),
    ],
)
def test_a_planted_fault_is_found_and_named(source: str, target: str, aborted: str, expected: dict[DifferenceKind, int]) -> None:
    assert kinds(source, target, aborted) == expected


def test_a_difference_names_both_offsets() -> None:
    changed = compare_histories(ORDERS_0, history("abc"), history("aXc", step=2)).differences
    assert [(difference.source_offset, difference.target_offset) for difference in changed] == [(1, 2)]
    assert str(changed[0]) == "changed: orders-3: source offset 1, target offset 2"


def test_other_offsets_alone_are_no_difference_and_are_paired() -> None:
    compared = compare_histories(ORDERS_0, history("abc", step=3), history("abc"))
    assert compared.differences == ()
    assert compared.pairs.tolist() == [[0, 0], [3, 1], [6, 2]]


def test_records_around_a_fault_are_still_paired() -> None:
    assert compare_histories(ORDERS_0, history("abcd"), history("acd")).pairs.tolist() == [[0, 0], [2, 1], [3, 2]]


numbers = st.lists(st.integers(0, 30), max_size=40)


@given(numbers, numbers)
def test_equal_histories_and_only_they_have_no_differences(source: list[int], target: list[int]) -> None:
    assert (not kinds(source, target)) == (source == target)


@pytest.mark.slow
@given(numbers, numbers)
def test_counts_add_up_whatever_happened(source: list[int], target: list[int]) -> None:
    actual = kinds(source, target)
    assert len(target) == len(source) - actual[K.LOST] + actual[K.DUPLICATED] + actual[K.EXTRA]


@pytest.mark.slow
@given(st.integers(1, 40).map(lambda count: list(range(count))), st.data())
def test_removing_records_is_reported_as_exactly_so_many_lost(source: list[int], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.sampled_from(source)))
    assert kinds(source, [letter for letter in source if letter not in gone]) == Counter({K.LOST: len(gone)} if gone else {})


@given(st.integers(2, 40), st.data())
def test_moving_one_record_is_one_reordered(count: int, data: st.DataObject) -> None:
    source = list(range(count))
    target = source.copy()
    moved = target.pop(data.draw(st.integers(0, count - 1)))
    target.insert(data.draw(st.integers(0, count - 1)), moved)
    assert kinds(source, target) == Counter({} if source == target else {K.REORDERED: 1})


@pytest.mark.parametrize(
    "other",
    [
        (b"K", b"v", (("h", b"1"),), 1, 5),
        (None, b"v", (("h", b"1"),), 1, 5),
        (b"k", None, (("h", b"1"),), 1, 5),
        (b"k", b"", (("h", b"1"),), 1, 5),
        (b"kv", b"", (("h", b"1"),), 1, 5),
        (b"k", b"v", (), 1, 5),
        (b"k", b"v", (("h", None),), 1, 5),
        (b"k", b"v", (("h", b""),), 1, 5),
        (b"k", b"v", (("h1", b""),), 1, 5),
        (b"k", b"v", (("h", b"1"), ("h", b"1")), 1, 5),
        (b"k", b"v", (("h", b"1"),), 2, 5),
        (b"k", b"v", (("h", b"1"),), 1, 6),
    ],
)
def test_any_changed_field_changes_the_digest(other: tuple[bytes, bytes, tuple[tuple[str, bytes], ...], int, int]) -> None:
    assert record_digest(*other) != record_digest(b"k", b"v", (("h", b"1"),), 1, 5)


def test_the_order_of_headers_counts() -> None:
    assert record_digest(b"k", b"v", (("a", b"1"), ("b", b"2")), 1, 5) != record_digest(
        b"k", b"v", (("b", b"2"), ("a", b"1")), 1, 5
    )


def test_a_translation_that_misses_its_record_is_a_difference() -> None:
    results = {0: ("data", True, 0), 1: ("data", True, 2), 2: ("aborted", False, None), 3: ("data", False, 3)}
    pairs = compare_histories(ORDERS_0, history("abcd"), history("abcd")).pairs
    wrong = mistranslated(ORDERS_0, pairs, lambda topic, partition, offset: results[offset])
    assert [difference.source_offset for difference in wrong] == [1, 2, 3]
    assert {difference.kind for difference in wrong} == {K.MISTRANSLATED}
