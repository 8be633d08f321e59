"""What keeps groups from continuing at the other cluster, before anything is moved."""

from __future__ import annotations

from typing import Any

import pytest

from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome, Step
from shallow_mirror.migration.group_blockers import commit_problems, is_pending, plan_problems
from shallow_mirror.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


def report_of(offset: int, outcome: Outcome, **more: Any) -> GroupsReport:
    partition = GroupPartition(group="billing", topic_partition=ORDERS, offset=offset, metadata="", outcome=outcome, **more)
    group = Group(name="billing", partitions=(partition,), state="empty")
    return GroupsReport(mirror="m", origin="east", other="west", groups=(group,))


@pytest.mark.parametrize("outcome", [Outcome.WAITS, Outcome.TRANSLATED])
def test_an_offset_beyond_the_end_of_the_log_is_in_the_way_whatever_the_map_says(outcome: Outcome) -> None:
    (problem,) = plan_problems(report_of(500, outcome), {ORDERS: 20})
    assert problem.startswith("group billing has committed offset 500 of orders-0, whose log ends at 20 at east: ")
    assert "reset these offsets there" in problem


def test_an_offset_at_the_end_of_the_log_is_waited_for() -> None:
    assert plan_problems(report_of(20, Outcome.WAITS), {ORDERS: 20}) == []
    assert plan_problems(report_of(500, Outcome.NOT_MIRRORED), {}) == []


def test_a_group_that_is_further_at_the_other_cluster_needs_somebody_who_deletes_its_offset_there() -> None:
    further = report_of(3, Outcome.TRANSLATED, step=Step.FURTHER, to_topic_partition=ORDERS, to_offset=4, has=9)
    assert not is_pending(further), "no waiting changes that"
    sentence = (
        "group billing: orders-0 at offset 3 leads to 4 at west, where the group is at 9 already: delete that offset, unless the "
        "group is to continue there (kafka-consumer-groups.sh --delete-offsets --group billing --topic orders:0)"
    )
    assert commit_problems(further) == plan_problems(further, {ORDERS: 20}) == [sentence]


def test_offsets_of_open_transactions_are_waited_for() -> None:
    assert is_pending(report_of(3, Outcome.PENDING, step=Step.NONE))
    assert not is_pending(report_of(3, Outcome.LOST, step=Step.NONE))
