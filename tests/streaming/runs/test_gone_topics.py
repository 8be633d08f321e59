"""Which partitions a query begins with, and what is reported, where topics of the map are gone."""

from __future__ import annotations

import pytest

from shallow_mirror.errors import TopicGoneError, TopicRecreatedError
from shallow_mirror.streaming.planning.offset_planning import recreated_topics
from shallow_mirror.streaming.runs.gone_topics import problems_of_gone, without_gone_topics
from shallow_mirror.streaming.runs.source_query import SourceListing
from shallow_mirror.types import SourcePartition

ORDERS, AGAIN, USERS = (SourcePartition(*name_and_id, 0) for name_and_id in (("orders", "A"), ("orders", "B"), ("users", "U")))


@pytest.mark.parametrize(
    ("mapped", "now", "recreated", "begun"),
    [
        ((ORDERS, USERS), {"orders": "A", "users": "U"}, {}, [ORDERS, USERS]),
        ((ORDERS, USERS), {"users": "U"}, {}, [USERS]),
        ((ORDERS, USERS), {"orders": "B", "users": "U"}, {"orders": "A"}, [ORDERS, USERS]),
        ((ORDERS, AGAIN), {"orders": "B"}, {}, [AGAIN]),
        ((ORDERS, AGAIN), {"orders": "C"}, {"orders": "B"}, [AGAIN]),
    ],
    ids=["unchanged", "deleted", "created again", "was continued", "created again twice"],
)
def test_a_query_begins_with_the_topics_of_the_source_and_knows_what_was_created_again(
    mapped: tuple[SourcePartition, ...], now: dict[str, str], recreated: dict[str, str], begun: list[SourcePartition]
) -> None:
    assert recreated_topics(mapped, now) == recreated
    listing = SourceListing(topics={}, topic_ids=now, starts={}, with_position=frozenset(), recreated=recreated)
    assert without_gone_topics(mapped, listing.planned_ids) == begun
    plain = [source for source in mapped if now.get(source.topic) == source.topic_id]
    assert without_gone_topics(mapped, now) == plain


def test_each_topic_that_is_left_out_is_a_problem_with_a_remedy() -> None:
    problems = problems_of_gone({"orders": "target topic copy (for orders) was deleted"}, {"users": "U"})
    assert [problem.error_name for _, problem in problems] == [TopicGoneError.__name__, TopicRecreatedError.__name__]
    assert [name in problem.text for name, problem in problems] == [True, True]
    assert all("forget CONF TOPIC" in problem.remedy for _, problem in problems)
