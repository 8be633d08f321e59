"""What a report says of verifications: the last one with its time and coverage, and never a result that it does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.contents import a_verification, content, rows_of_a_day
from tests.support.record_batches import batch
from tests.verify.mirrored import Mirrored

from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import RetriableError
from shallow_mirror.report.page import page
from shallow_mirror.report.verifications import ShownVerification, shown_verifications


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Mirrored]:
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(batch(0, 10), batch(10, 5))
        yield mirrored


def shown(mirrored: Mirrored) -> list[ShownVerification]:
    tables = TableStorage(mirrored.config.table_location).best_effort_tables()
    return list(shown_verifications(tables, mirrored.owner.positions()))


@pytest.mark.slow
def test_a_verification_is_shown_with_what_was_copied_since(copied: Mirrored) -> None:
    assert shown(copied) == []
    copied.verify()
    copied.mirror(batch(15, 4))
    (verification,) = shown(copied)
    assert (verification.scope, verification.outcome, verification.not_covered) == ("everything", "no difference", "nothing")
    assert (verification.equal, verification.copied_since_offsets) == ("15 records of 1 partition", 4)
    assert verification.recorded.finished_at_ms is not None


@pytest.mark.slow
def test_a_newer_one_that_was_interrupted_or_different_comes_first(copied: Mirrored) -> None:
    def fail(_: object) -> None:
        raise RetriableError("NETWORK_EXCEPTION", "gone")

    copied.verify()
    copied.append(batch(0, 3))
    copied.verify(topics=["orders"])
    with pytest.raises(RetriableError):
        copied.verify(is_deep=True, on_progress=fail)
    assert [(verification.scope, verification.outcome) for verification in shown(copied)] == [
        ("everything, every batch opened", "not finished: interrupted, or under way"),
        ("orders", "1 difference"),
        ("everything", "no difference"),
    ]
    text = page(replace(content(rows_of_a_day(1)), verifications=shown(copied)))
    assert "of orders: 1 difference; found equal: 15 records of 1 partition" in text
    assert "A newer one has not ended." in text


def test_what_was_not_covered_is_named_and_the_rest_counted() -> None:
    sentences = [f"orders-{number}: nothing of it is copied" for number in range(20)]
    verification = a_verification("orders", uncovered=sentences, uncovered_count=25, unchecked_offsets=7)
    assert verification.outcome == "no difference in what was covered"
    assert verification.not_covered == "; ".join([*sentences[:3], "and 22 more", "7 offsets cannot be checked"])


def test_a_report_without_a_verification_says_so() -> None:
    text = page(content())
    assert "No verification that has ended is recorded" in text
    first = a_verification("orders")
    unfinished = replace(first, recorded=replace(first.recorded, finished_at_ms=None, result=None))
    text = page(replace(content(), verifications=[unfinished]))
    assert "No verification that has ended is recorded" in text
    assert "not finished: interrupted, or under way" in text


def test_a_row_of_an_older_release_has_no_result() -> None:
    first = a_verification("orders")
    older = replace(first, recorded=replace(first.recorded, result=None))
    assert (older.outcome, older.equal, older.not_covered) == (
        "finished by a release that did not record results",
        "not known",
        "not known",
    )


def test_the_end_of_a_migration_is_named_as_what_it_compared() -> None:
    first = a_verification("orders")
    scope = {**first.recorded.scope, "after": json.loads('{"orders-0": [1, 2]}')}
    verification = replace(first, recorded=replace(first.recorded, scope=scope))
    assert verification.scope == "orders, what was copied since an earlier one"
