"""The checker finds what is wrong with a history, and nothing where it is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operators.checker import GroupCommit, Observation, Row, check
from tests.operators.history import LogKey, Outcome, Produced, SourceLog, SourceTxn, TargetLog

SOURCE, TARGET = LogKey("a", "east", 0), LogKey("a", "west", 0)
COMMITTED, ABORTED = SourceTxn(Outcome.COMMITTED), SourceTxn(Outcome.ABORTED)


def row(kind: str, start: int, end: int, target_start: int | None = None) -> Row:
    target_end = None if target_start is None else target_start + end - start
    return {
        **dict(zip(("source_topic", "source_topic_id", "source_partition"), SOURCE, strict=True)),
        **dict(zip(("target_topic", "target_topic_id", "target_partition"), TARGET, strict=True)),
        "kind": kind,
        "source_start": start,
        "source_end": end,
        "target_start": target_start,
        "target_end": target_end,
    }


ROWS = (row("data", 0, 3, 0), row("commit", 3, 4), row("aborted", 4, 5), row("abort", 5, 6), row("data", 6, 8, 4))
"""The mirror's own marker is at 3 of the target."""


def source(**changes: Any) -> SourceLog:
    """Two plain records, one that was committed, one that was aborted, two plain ones."""
    values = {0: ("v0", None), 1: ("v1", None), 2: ("v2", COMMITTED), 4: ("v4", ABORTED), 6: ("v6", None), 7: ("v7", None)}
    records = [Produced(offset, value, txn) for offset, (value, txn) in values.items()]
    return replace(SourceLog(records=records, markers={3: True, 5: False}, end=8), **changes)


def observed(
    rows: tuple[Row, ...] = ROWS, values: dict[int, str] | None = None, log: SourceLog | None = None, **more: Any
) -> list[str]:
    target = {0: "v0", 1: "v1", 2: "v2", 4: "v6", 5: "v7"} if values is None else values
    observation = Observation(
        source={SOURCE: log or source()}, target={TARGET: TargetLog(target)}, rows=rows, complete=frozenset({SOURCE})
    )
    return check(replace(observation, **more))


GOOD = {0: "v0", 1: "v1", 2: "v2", 4: "v6", 5: "v7"}


def test_nothing_differs_where_all_is_as_it_should_be() -> None:
    assert observed() == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({0: "v0", 2: "v2", 4: "v6", 5: "v7"}, "lost"),
        ({0: "v0", 1: "other", 2: "v2", 4: "v6", 5: "v7"}, "changed"),
        ({0: "v1", 1: "v0", 2: "v2", 4: "v6", 5: "v7"}, "changed"),
        (GOOD | {6: "v7"}, "twice"),
        (GOOD | {6: "v4"}, "its transaction was not committed"),
        (GOOD | {6: "unknown"}, "in no row of the map"),
    ],
)
def test_a_target_that_differs_is_found(values: dict[int, str], sentence: str) -> None:
    assert any(sentence in difference for difference in observed(values=values))


@pytest.mark.parametrize(
    ("rows", "values", "sentence"),
    [
        (ROWS[:-1], None, "not copied up to its end"),
        ((*ROWS[:1], *ROWS[2:]), None, "leave a hole"),
        ((*ROWS, row("data", 7, 8, 6)), GOOD | {6: "v7"}, "overlap"),
        ((*ROWS[:-1], row("gap", 6, 8)), None, "a row of the map says gap"),
        ((*ROWS[:-1], row("expired", 6, 8)), None, "a row of the map says expired"),
        ((*ROWS[:2], row("data", 4, 5, 7), *ROWS[3:]), GOOD | {7: "v4"}, "of an aborted transaction"),
        ((*ROWS[:-1], row("data", 6, 7, 5), row("data", 7, 8, 4)), {0: "v0", 1: "v1", 2: "v2", 4: "v7", 5: "v6"}, "reordered"),
        ((), {}, "the map has no row of it"),
        (ROWS[1:], {4: "v6", 5: "v7"}, "below the first row"),
    ],
)
def test_a_map_that_differs_is_found(rows: tuple[Row, ...], values: dict[int, str] | None, sentence: str) -> None:
    assert any(sentence in difference for difference in observed(rows, values))


def test_what_an_operator_allowed_to_be_copied_again_may_be_there_twice_and_not_thrice() -> None:
    log = source(repeats=[(6, 8)])
    assert observed(values=GOOD | {6: "v6", 7: "v7"}, log=log) == []
    assert any("twice" in difference for difference in observed(values=GOOD | {6: "v6", 7: "v6"}, log=log))
    assert any("twice" in difference for difference in observed(values=GOOD | {6: "v0"}, log=log))


def test_a_record_that_retention_deleted_may_be_expired() -> None:
    rows = (*ROWS[:-1], row("expired", 6, 8))
    values = {0: "v0", 1: "v1", 2: "v2"}
    assert observed(rows, values, source(deleted_before=8)) == []
    assert any("expired" in difference for difference in observed(rows, values, source(deleted_before=7)))


def test_an_aborted_record_may_be_copied_where_the_mirror_does_not_wait_for_transactions() -> None:
    rows = (*ROWS[:2], row("data", 4, 5, 4), ROWS[3], row("data", 6, 8, 6))
    values = {0: "v0", 1: "v1", 2: "v2", 4: "v4", 6: "v6", 7: "v7"}
    assert observed(rows, values, source(uncommitted=[(4, 8)])) == []
    assert observed(rows, values) != []


def test_what_is_copied_at_its_own_offset_may_be_ahead_of_the_map_while_the_topic_is_not_copied() -> None:
    rows, values = ROWS[:1], {0: "v0", 1: "v1", 2: "v2", 6: "v6"}
    assert observed(rows, values, complete=frozenset()) == []
    assert any("in no row" in difference for difference in observed(rows, values))
    assert any("in no row" in difference for difference in observed(rows, values | {7: "v6"}, complete=frozenset()))


def test_a_row_of_what_the_source_had_deleted_before_its_log_was_continued_may_have_holes() -> None:
    continued = {"target_producer_id": 9, "target_producer_epoch": None}
    rows = ({**row("data", 0, 6, 0), **continued}, {**row("data", 6, 8, 6), **continued})
    values, deleted = {0: "v0", 1: "v1", 2: "v2", 6: "v6", 7: "v7"}, source(deleted_before=6)
    assert observed(rows, values, deleted) == []
    assert any("of an aborted transaction" in difference for difference in observed(rows, values))
    assert any("visible" in difference or "aborted" in difference for difference in observed(rows, values | {4: "v4"}, deleted))
    assert any("lost" in difference for difference in observed(rows, {0: "v0", 2: "v2", 6: "v6", 7: "v7"}, deleted))


def test_a_row_without_records_tells_what_the_source_had_deleted_when_its_offsets_were_preserved_no_longer() -> None:
    uncounted = {"target_producer_id": 9, "target_producer_epoch": 0, "record_count": 0}
    rows = ({**row("data", 0, 6, 0), **uncounted}, row("data", 6, 8, 6))
    values, deleted = {0: "v0", 1: "v1", 2: "v2", 6: "v6", 7: "v7"}, source(deleted_before=6)
    assert observed(rows, values, deleted) == []
    assert any("of an aborted transaction" in difference for difference in observed(rows, values))
    counted = ({**rows[0], "record_count": 3}, rows[1])
    assert any("of an aborted transaction" in difference for difference in observed(counted, values, deleted))


def test_records_of_others_at_the_target_are_no_copies() -> None:
    assert observed(values=GOOD | {6: "theirs"}, foreign=frozenset({"theirs"})) == []


@pytest.mark.parametrize(("source_offset", "target_offset"), [(6, 4), (6, 3), (8, 6), (0, 0)])
def test_a_group_that_misses_nothing_is_right(source_offset: int, target_offset: int) -> None:
    assert observed(groups=[GroupCommit("g", SOURCE, source_offset, TARGET, target_offset, 6)]) == []


@pytest.mark.parametrize(
    ("source_offset", "target_offset", "sentence"), [(6, 5, "which it has still to read"), (8, 7, "beyond the end of the log")]
)
def test_a_group_that_is_beyond_is_found(source_offset: int, target_offset: int, sentence: str) -> None:
    differences = observed(groups=[GroupCommit("g", SOURCE, source_offset, TARGET, target_offset, 6)])
    assert [sentence in difference for difference in differences] == [True]


def test_a_group_may_be_at_a_later_copy_of_what_an_operator_let_repeat() -> None:
    """Older tables, put back behind it, name the first copy."""
    group, values = GroupCommit("g", SOURCE, 6, TARGET, 8, 10), GOOD | {8: "v6", 9: "v7"}
    assert observed(values=values, log=source(repeats=[(6, 8)]), groups=[group]) == []
    first_only = observed(values=GOOD | {9: "v7"}, log=source(repeats=[(6, 8)]), groups=[group])
    assert any("v6, which it has still to read" in difference for difference in first_only)
    assert any("which it has still to read" in difference for difference in observed(values=values, groups=[group]))
