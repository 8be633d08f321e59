"""What keeps groups from continuing at the other cluster, before anything is moved."""

from __future__ import annotations

import pytest

from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome
from shallow_mirror.migration.group_blockers import plan_problems
from shallow_mirror.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


def report_of(offset: int, outcome: Outcome) -> GroupsReport:
    partition = GroupPartition(group="billing", topic_partition=ORDERS, offset=offset, metadata="", outcome=outcome)
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
