"""The checker is shown bad histories, each bad in one way, and has to say which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.check import Checker, Piece, differences_of
from tests.faults.writers import Outcome, Written

from shallow_mirror.demo.history import History
from shallow_mirror.demo.map_rows import MapRow
from shallow_mirror.types import TopicPartition

ORDERS_0 = TopicPartition("orders", 0)


def digest(name: str) -> bytes:
    return name.encode().ljust(16)


def history(*records: tuple[int, str]) -> History:
    return History.of((offset, digest(name)) for offset, name in records)


def row(start: int, end: int, kind: str = "data", target: int | None = None) -> MapRow:
    return MapRow(
        source_topic="orders",
        source_partition=0,
        source_start=start,
        source_end=end,
        kind=kind,
        target_start=target,
        record_count=end - start,
        batch_count=1,
        rebuilt_batch_count=0,
        size_bytes=0,
    )


def written(offset: int | None, name: str, outcome: Outcome = Outcome.OK) -> Written:
    return Written(topic_partition=ORDERS_0, offset=offset, digest=digest(name), outcome=outcome)


GOOD = Piece(
    topic_partition=ORDERS_0,
    start=10,
    end=17,
    source=history((10, "a"), (11, "b"), (14, "c"), (15, "d")),
    target=history((5, "a"), (6, "b"), (7, "c"), (8, "d")),
    rows=[row(10, 12, target=5), row(12, 13, "aborted"), row(13, 14, "abort"), row(14, 16, target=7), row(16, 17, "commit")],
    written=[
        written(10, "a"),
        written(11, "b"),
        written(12, "x", Outcome.FAILED),
        written(14, "c"),
        written(15, "d"),
        written(None, "y", Outcome.UNKNOWN),
    ],
)
"""Six records, of which x was aborted, and y never arrived."""


def kinds(piece: Piece) -> list[str]:
    return sorted({difference.partition(":")[0] for difference in differences_of(piece)})


def target(*names: str) -> History:
    return history(*enumerate(names, start=5))


def test_a_copy_of_all_that_was_committed_is_no_difference() -> None:
    assert differences_of(GOOD) == []


def test_what_a_writer_does_not_know_may_be_there_or_not() -> None:
    unknown = [replace(written_record, outcome=Outcome.UNKNOWN) for written_record in GOOD.written]
    assert differences_of(replace(GOOD, written=unknown)) == []


@pytest.mark.parametrize(
    ("target_history", "expected"),
    [
        (target("a", "b", "c"), ["lost"]),
        (target("a", "b", "c", "d", "d"), ["duplicated"]),
        (target("b", "a", "c", "d"), ["mistranslated", "reordered"]),
        (target("a", "b", "c", "d", "x"), ["aborted but visible"]),
        (target("a", "b", "c", "z"), ["changed", "lost"]),
        (target("a", "b", "c", "d", "z"), ["extra"]),
        (history((5, "a"), (6, "b"), (8, "c"), (9, "d")), ["mistranslated"]),
        (target(), ["lost"]),
    ],
)
def test_a_bad_target_is_named_by_what_is_bad_about_it(target_history: History, expected: Sequence[str]) -> None:
    assert kinds(replace(GOOD, target=target_history)) == expected


def test_an_acknowledged_write_that_neither_cluster_has_is_lost() -> None:
    lost = replace(GOOD, written=[*GOOD.written, written(16, "acknowledged")])
    assert differences_of(lost) == ["lost: orders-0: source offset 16, target offset None: its writer was told ok"]


def test_an_aborted_write_that_both_clusters_show_is_found() -> None:
    aborted = [replace(record, outcome=Outcome.FAILED) if record.offset == 11 else record for record in GOOD.written]
    assert kinds(replace(GOOD, written=aborted)) == ["aborted but visible"]


@pytest.mark.parametrize(
    "rows",
    [
        GOOD.rows[1:],
        GOOD.rows[:-1],
        [row for row in GOOD.rows if row.kind != "abort"],
        [*GOOD.rows, row(12, 14, "gap")],
        [*GOOD.rows, row(9, 10, "gap")],
        [],
    ],
)
def test_a_map_with_a_hole_or_an_overlap_is_bad(rows: Sequence[MapRow]) -> None:
    assert "map" in kinds(replace(GOOD, rows=rows))


def test_a_row_that_is_recorded_twice_is_bad() -> None:
    assert "map" in kinds(replace(GOOD, rows=[*GOOD.rows, GOOD.rows[2]]))


def test_a_record_that_was_acknowledged_without_an_offset_waits_until_it_is_found() -> None:
    reported = [written(None, "behind the end"), written(None, "in this piece"), written(None, "y", Outcome.UNKNOWN)]
    checker = Checker("source", "target", ["orders"], Path("tables"), lambda: [reported.pop() for _ in range(len(reported))])
    below = checker._written_below({ORDERS_0: 17}, {ORDERS_0: history((5, "in this piece"))})
    assert {record.digest for record in below[ORDERS_0]} == {digest("in this piece"), digest("y")}
    assert checker._written_below({ORDERS_0: 20}, {ORDERS_0: history((6, "other"))}) == {}
    assert [difference.split(":")[0] for difference in checker.not_found()] == ["lost"]
    below = checker._written_below({ORDERS_0: 30}, {ORDERS_0: history((7, "behind the end"))})
    assert [record.digest for record in below[ORDERS_0]] == [digest("behind the end")]
    assert checker.not_found() == []
