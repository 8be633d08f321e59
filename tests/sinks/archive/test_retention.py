"""Which objects have expired."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.sinks.archive.retention import RetainedRow, Retention, RetentionRule
from shallow_mirror.types import SourcePartition

NOW_MS = 1_000_000


def row(number: int, topic: str = "orders", size_bytes: int = 10, *, name: str | None = None, partition: int = 0) -> RetainedRow:
    source = SourcePartition(topic, "id", partition)
    return RetainedRow(name or f"object {number}", source, size_bytes, number, number * 1000)


def expired(rows: list[RetainedRow], *rules: RetentionRule, now_ms: int = NOW_MS) -> list[str]:
    topic_bytes: dict[str, int] = {}
    for entry in rows:
        topic_bytes[entry.source.topic] = topic_bytes.get(entry.source.topic, 0) + entry.size_bytes
    return [found.name for found in Retention(rules).expired(rows, topic_bytes, now_ms)]


def test_objects_expire_when_they_are_older_than_keep() -> None:
    rows = [row(number) for number in range(1, 6)]
    assert expired(rows, RetentionRule("orders", keep_ms=NOW_MS - 3000)) == ["object 1", "object 2", "object 3"]
    assert expired(rows, RetentionRule("orders", keep_ms=NOW_MS)) == []


def test_as_many_of_the_newest_objects_are_kept_as_have_keep_bytes() -> None:
    rows = [row(number) for number in range(1, 6)]
    assert expired(rows, RetentionRule("orders", keep_bytes=20)) == ["object 1", "object 2", "object 3"]
    assert expired(rows, RetentionRule("orders", keep_bytes=21)) == ["object 1", "object 2"]
    assert expired(rows, RetentionRule("orders", keep_bytes=50)) == []


def test_either_limit_is_enough() -> None:
    rows = [row(number) for number in range(1, 6)]
    rule = RetentionRule("orders", keep_ms=NOW_MS - 1000, keep_bytes=30)
    assert expired(rows, rule) == ["object 1", "object 2"]


def test_the_first_pattern_that_matches_the_whole_topic_counts() -> None:
    rows = [row(1), row(1, "orders-2", name="second"), row(1, "payments", name="third")]
    keep, drop = RetentionRule("orders"), RetentionRule("orders.*", keep_ms=0)
    assert expired(rows, keep, drop) == ["second"]
    assert expired(rows, drop, keep) == ["object 1", "second"]
    assert expired(rows) == []


def test_an_object_is_kept_while_one_of_its_rows_is_and_with_it_what_follows_in_its_partitions() -> None:
    rows = [row(1), row(1, "payments", name="object 1"), row(2), row(2, "other", name="other 2")]
    assert expired(rows, RetentionRule("orders|other", keep_ms=0)) == ["other 2"]


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 30), st.integers(0, 1)), max_size=30
    ),
    st.integers(0, 7),
    st.integers(1, 100) | st.none(),
)
def test_what_is_left_of_a_partition_is_its_end_and_keep_bytes_are_left(
    drawn: list[tuple[int, str, int, int, int]], keep: int, keep_bytes: int | None
) -> None:
    unique = {(number, topic, partition): (size, slot) for number, topic, partition, size, slot in drawn}
    rows = sorted(
        row(number, topic, size, name=f"{number}-{slot}", partition=partition)
        for (number, topic, partition), (size, slot) in unique.items()
    )
    rows.sort(key=lambda entry: entry.micro_batch)
    gone = set(expired(rows, RetentionRule("a", keep_ms=NOW_MS - keep * 1000, keep_bytes=keep_bytes), RetentionRule("b")))
    assert not any(entry.object_name in gone for entry in rows if entry.source.topic == "b")
    for source in {entry.source for entry in rows}:
        is_left = [entry.object_name not in gone for entry in rows if entry.source == source]
        assert is_left == sorted(is_left)
    left = sum(entry.size_bytes for entry in rows if entry.source.topic == "a" and entry.object_name not in gone)
    total = sum(entry.size_bytes for entry in rows if entry.source.topic == "a")
    young = sum(entry.size_bytes for entry in rows if entry.source.topic == "a" and entry.decided_at_ms > keep * 1000)
    assert left >= young if keep_bytes is None else left >= min(total, keep_bytes, young)
