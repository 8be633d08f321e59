"""The checker of migrations finds what is wrong with a history, and nothing where it is right."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.operators.history import Outcome, SourceTxn
from tests.operators.moves.application import Site, Written
from tests.operators.moves.checker import Late, Seen, check


def written(value: str, side: str, offset: int, stay: int, **more: Any) -> Written:
    values: dict[str, Any] = {"topic": "a", "topic_id": "t", "partition": 0, "is_foreign": False, "txn": None}
    return Written(value=value, side=side, offset=offset, stay=stay, **{**values, **more})


ABORTED = SourceTxn(Outcome.ABORTED)
WRITTEN = (
    written("v0", "east", 0, 0),
    written("v1", "east", 1, 0),
    written("aborted", "east", 2, 0, txn=ABORTED),
    written("v2", "west", 5, 1),
    written("late", "east", 4, 1),
)
SITE = Site("a", "a", ("g",), side="west", stay=1)
READ = Counter({"v0": 1, "v1": 1, "v2": 1, "late": 1})


def differences(*values: str, read: Counter[str] = READ, **more: Any) -> list[str]:
    """Return the differences where `values` are in the partition at west."""
    seen = Seen(
        site=SITE,
        written=WRITTEN,
        visible={"west": {("a", 0): values}, "east": {}},
        read={"g": read},
        late=Late(carried=frozenset({"late"})),
    )
    return check(replace(seen, **more))


GOOD = ("v0", "v1", "v2", "late")


@pytest.mark.parametrize("values", [GOOD, ("v0", "v1", "late", "v2")])
def test_nothing_differs_where_all_is_as_it_should_be(values: tuple[str, ...]) -> None:
    assert differences(*values) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (("v0", "v2", "late"), "lost: v1, written to a-0 at east, is not at west"),
        (("v0", "v1", "v1", "v2", "late"), "twice: v1"),
        (("v1", "v0", "v2", "late"), "reordered: v1 lies in front of v0"),
        (("v0", "v2", "v1", "late"), "reordered: v2 lies in front of v1"),
        ((*GOOD, "aborted"), "although its transaction was not committed"),
        ((*GOOD, "other"), "was never written"),
        (GOOD[:-1], "lost: late"),
        ((*GOOD, "late"), "twice: late"),
    ],
)
def test_records_that_are_not_where_the_readers_are_once_and_in_order_are_found(values: tuple[str, ...], sentence: str) -> None:
    assert any(sentence in difference for difference in differences(*values))


def test_a_record_in_another_partition_is_found() -> None:
    visible = {"west": {("a", 0): GOOD[1:], ("a", 1): ("v0",)}, "east": {}}
    assert differences(visible=visible) == ["moved: v0, written to a-0 at east, is in ('a', 1)"]


@pytest.mark.parametrize(
    ("read", "sentence"), [(READ - Counter(["v1"]), "has never read v1"), (READ + Counter(["v1"]), "has read v1, written to a-0")]
)
def test_a_group_that_misses_or_repeats_a_record_is_found(read: Counter[str], sentence: str) -> None:
    assert [sentence in difference for difference in differences(*GOOD, read=read)] == [True]


def test_late_writes_in_quarantine_are_kept_once_and_nowhere_else() -> None:
    late = Late(quarantined=frozenset({"late"}))
    assert differences(*GOOD[:-1], late=late, quarantine={"west": ["late"]}) == []
    assert "0 times in topics of late writes" in differences(*GOOD[:-1], late=late)[0]
    assert "at west as well" in differences(*GOOD, late=late, quarantine={"west": ["late"]})[0]


def test_what_was_carried_away_and_came_back_is_there_twice() -> None:
    back = replace(SITE, side="east", stay=2)
    visible = {"east": {("a", 0): ("v0", "v1", "late", "v2", "late")}, "west": {}}
    assert differences(site=back, visible=visible) == []


def test_records_of_somebody_else_at_the_cluster_that_the_wave_has_not_moved_to_are_not_missed() -> None:
    assert differences(*GOOD, written=(*WRITTEN, written("foreign", "west", 3, 0, is_foreign=True))) == []


def test_aborted_records_may_be_seen_where_the_mirrors_do_not_wait_for_transactions() -> None:
    assert differences(*GOOD, "aborted", is_uncommitted=True) == []
