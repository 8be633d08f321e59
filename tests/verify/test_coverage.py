"""A verification is equal only if something was compared of everything that the mirror file includes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fakes.changes import error
from tests.support.console_entry import console
from tests.support.record_batches import batch
from tests.verify.mirrored import TOPIC, Mirrored

pytestmark = pytest.mark.thorough


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[Mirrored]:
    with Mirrored(tmp_path, topics={"include": ["ord.*"]}) as mirrored:
        yield mirrored


def test_a_topic_that_the_map_lacks_is_not_covered_unless_it_is_empty(mirrored: Mirrored) -> None:
    mirrored.mirror(batch(0, 10))
    mirrored.source.create_topic("orders-empty")
    mirrored.source.create_topic("invoices")
    mirrored.source.seed(("invoices", 0), batch(0, 3))
    report = mirrored.verify()
    assert (report.is_equal, report.uncovered, report.behind_offsets) == (True, (), 0)
    mirrored.source.create_topic("orders-new", 2)
    mirrored.source.seed(("orders-new", 1), batch(0, 3))
    report = mirrored.verify()
    assert report.uncovered == ("orders-new-1: the offset map does not have it: 3 offsets at the source",)
    assert (report.is_equal, report.record_count, report.behind_offsets, report.behind_partitions) == (False, 10, 3, 1)


def test_a_partition_whose_leader_does_not_answer_is_not_covered(mirrored: Mirrored) -> None:
    mirrored.mirror(batch(0, 10))
    mirrored.source.create_topic("orders-new")
    mirrored.source.move_leader(("orders-new", 0), -1)
    (sentence,) = mirrored.verify().uncovered
    assert sentence.startswith("orders-new-0: where its log ends at the source is not known: ")


def test_chosen_topics_are_all_that_has_to_be_covered(mirrored: Mirrored) -> None:
    mirrored.mirror(batch(0, 10))
    mirrored.source.create_topic("orders-new")
    mirrored.source.seed(("orders-new", 0), batch(0, 3))
    assert mirrored.verify(topics=[TOPIC]).is_equal


def test_an_empty_map_is_not_equal(mirrored: Mirrored) -> None:
    mirrored.source.seed((TOPIC, 0), batch(0, 10))
    report = mirrored.verify()
    assert report.uncovered == ("orders-0: the offset map does not have it: 10 offsets at the source",)
    assert report.sentences()[:2] == [
        "no difference in what could be compared, which is not all that was asked for",
        "  not covered: orders-0: the offset map does not have it: 10 offsets at the source",
    ]


def test_offsets_behind_the_position_are_counted_and_do_no_harm(mirrored: Mirrored) -> None:
    mirrored.mirror(batch(0, 10))
    mirrored.source.seed((TOPIC, 0), batch(10, 7))
    report = mirrored.verify()
    assert (report.is_equal, report.behind_offsets, report.behind_partitions) == (True, 7, 1)
    assert (
        "not copied when the verification began: 7 offsets in 1 partition (`shallow-mirror status FILE` gives the reasons)"
        in report.sentences()
    )


def test_where_retention_left_nothing_of_what_was_copied_new_records_are_not_covered(mirrored: Mirrored) -> None:
    mirrored.mirror(batch(0, 10))
    mirrored.source.seed((TOPIC, 0), batch(10, 7))
    mirrored.source_log.delete_records_before(10)
    report = mirrored.verify()
    assert report.uncovered == ("orders-0: nothing of it is copied: 7 offsets at the source",)


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (
            [TOPIC, "payments"],
            "topics.include: payments: the source has no such topic, or hides it because DESCRIBE is not granted",
        ),
        ([TOPIC, "pay.*"], "topics.include: pay.*: the source has no such topic, or hides it because DESCRIBE is not granted"),
    ],
)
def test_a_pattern_without_a_topic_is_not_covered(tmp_path: Path, include: list[str], expected: str) -> None:
    with Mirrored(tmp_path, topics={"include": include}) as mirrored:
        mirrored.mirror(batch(0, 10))
        assert mirrored.verify().uncovered == (expected,)


@pytest.mark.parametrize(
    ("include", "exclude"),
    [
        ([TOPIC, "payments"], ["payments"]),
        ([TOPIC, "pay.*"], ["payments"]),
        ([TOPIC, "gone"], ["g.*"]),
    ],
)
def test_a_pattern_of_which_everything_is_excluded_asks_for_nothing(
    tmp_path: Path, include: list[str], exclude: list[str]
) -> None:
    with Mirrored(tmp_path, topics={"include": include, "exclude": exclude}) as mirrored:
        mirrored.mirror(batch(0, 10))
        mirrored.source.create_topic("payments")
        mirrored.source.seed(("payments", 0), batch(0, 3))
        report = mirrored.verify()
    assert (report.is_equal, report.uncovered) == (True, ())


def test_a_pattern_of_which_only_some_is_excluded_is_not_covered_without_the_rest(tmp_path: Path) -> None:
    with Mirrored(tmp_path, topics={"include": [TOPIC, "pay.*"], "exclude": ["payments"]}) as mirrored:
        mirrored.mirror(batch(0, 10))
        (sentence,) = mirrored.verify().uncovered
    assert sentence.startswith("topics.include: pay.*: the source has no such topic")


def test_a_topic_that_brokers_hide_is_named_with_the_grant(tmp_path: Path) -> None:
    with Mirrored(tmp_path, topics={"include": [TOPIC, "payments"]}) as mirrored:
        mirrored.mirror(batch(0, 10))
        mirrored.source.create_topic("payments")
        mirrored.source.change_always("Metadata", error(29, ("payments", -1)))
        (sentence,) = mirrored.verify().uncovered
    assert sentence == "topics.include: payments: TOPIC_AUTHORIZATION_FAILED: grant Read on topic payments"


def test_the_command_ends_with_1_and_says_what_is_not_covered(mirrored: Mirrored, tmp_path: Path) -> None:
    mirrored.mirror(batch(0, 10))
    mirrored.source.create_topic("orders-new")
    mirrored.source.seed(("orders-new", 0), batch(0, 3))
    (tmp_path / "mirror.yaml").write_text(yaml.safe_dump(mirrored.document), encoding="utf-8")
    ended = console("verify", str(tmp_path / "mirror.yaml"), "--json")
    document = json.loads(ended.lines[0])
    assert (ended.code, document["is_equal"], document["difference_counts"]) == (1, False, {})
    assert document["uncovered"] == ["orders-new-0: the offset map does not have it: 3 offsets at the source"]
