from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from shallow_mirror import routing

_TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)


def _problems(topics: list[str], template: str = "{topic}", *, same: bool = False) -> list[str]:
    return routing.problems(topics, template=template, source_alias="east", is_same_cluster=same)


@pytest.mark.parametrize(
    ("topic", "included"),
    [("orders", True), ("orders.eu", True), ("my-orders", False), ("orders.tmp", False), ("__consumer_offsets", False)],
)
def test_patterns_match_whole_names_and_exclusions_win(topic: str, included: bool) -> None:
    assert routing.is_included(topic, ["orders.*"], [".*tmp"]) is included


@pytest.mark.parametrize(
    ("include", "exclude", "topics", "unmatched"),
    [
        (["a", "b"], [], ["a"], ["b"]),
        (["a", "b.*"], [], ["a"], ["b.*"]),
        (["a", "b"], ["b"], ["a", "b"], []),  # there is such a topic, and it is excluded
        (["a", "b"], ["b"], ["a"], []),
        (["a", "b.*"], ["b1"], ["a", "b1"], []),
        (["a", "b.*"], ["b1"], ["a"], ["b.*"]),  # it asks for more than is excluded
        (["a", ".*"], [], ["a"], []),
        (["__a"], [], ["__a"], ["__a"]),
    ],
)
def test_what_matches_no_topic_is_named_unless_it_is_excluded(
    include: list[str], exclude: list[str], topics: list[str], unmatched: list[str]
) -> None:
    assert routing.unmatched_entries(include, exclude, topics) == unmatched


@pytest.mark.slow
@given(_TOPICS)
def test_internal_topics_never_match(topic: str) -> None:
    assert routing.is_included(topic, [".*"], []) is not topic.startswith("__")
    assert not routing.is_included(topic, [".*"], [], is_internal=True)


@pytest.mark.parametrize("topic", ["migrate-rehearsal-0123abcd.orders", "east.migrate-rehearsal-0123abcd.orders"])
def test_topics_of_a_rehearsal_match_only_patterns_that_name_it(topic: str) -> None:
    assert not routing.is_included(topic, [".*", "migrate-rehearsal-.*", re.escape("migrate-rehearsal-ffffffff.orders")], [])
    assert routing.is_included(topic, [re.escape(topic)], [])


@pytest.mark.parametrize("topic", ["migrate-rehearsal-plan", "migrate-rehearsal-0123abc.orders"])
def test_a_name_like_that_of_a_rehearsal_is_that_of_any_topic(topic: str) -> None:
    assert routing.is_included(topic, [".*"], [])


@pytest.mark.parametrize(
    "template",
    ["fixed", "{source}", "{topic", "{topic}{other}", "{topic!r}", "{topic:>9}", "{topic.__class__}", "{}", "a b{topic}"],
)
def test_templates_that_cannot_name_topics_are_refused(template: str) -> None:
    assert routing.template_problem(template) is not None


@pytest.mark.parametrize("template", ["{topic}", "{source}.{topic}", "copy_{topic}-1"])
def test_templates_that_can_name_topics_are_accepted(template: str) -> None:
    assert routing.template_problem(template) is None


def test_names_are_made_from_alias_and_topic() -> None:
    assert routing.target_topic_name("{source}.{topic}", "east", "orders") == "east.orders"


def test_a_topic_mirrored_onto_itself_is_refused() -> None:
    assert "onto itself" in _problems(["orders"], same=True)[0]
    assert _problems(["orders"], same=False) == []


def test_a_topic_that_would_be_mirrored_again_is_refused() -> None:
    assert "is itself a mirrored topic" in _problems(["orders", "east.orders"], "{source}.{topic}", same=True)[0]
    assert _problems(["orders", "east.orders"], "{source}.{topic}") == []


def test_names_that_are_too_long_are_refused() -> None:
    assert "249" in _problems(["t" * 249], "{source}.{topic}")[0]


def test_every_problem_is_listed() -> None:
    assert len(_problems(["a", "b", "c"], same=True)) == 3


def test_two_topics_to_one_target_are_refused() -> None:
    assert "both be written" in _problems(["a", "b"], "fixed")[0]
