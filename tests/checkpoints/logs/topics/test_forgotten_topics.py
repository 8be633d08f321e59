"""Which problems a forgotten topic closes: by the topic of the row, and of rows of older releases by their sentence."""

from __future__ import annotations

import pytest

from shallow_mirror.checkpoints.logs.topics.forgotten_topics import is_closed

FORGOTTEN = {"a": 10, "b": 10}


@pytest.mark.parametrize(
    ("text", "topic", "at_ms", "expected"),
    [
        pytest.param("the topic is gone", "a", 9, True, id="the topic of the row, whatever the sentence says"),
        pytest.param("the topic is gone", "a", 11, False, id="newer than the command"),
        pytest.param("source topic a differs from target topic x", "c", 9, False, id="a topic that is not forgotten"),
        pytest.param("source topic c is like source topic a", "a", 9, True, id="another topic is only mentioned"),
        pytest.param("source topic a was deleted", None, 9, True, id="older row"),
        pytest.param("target topic x (for a) was deleted; target topic y (for b) too", None, 9, True, id="older row, two topics"),
        pytest.param("target topic x (for a) was deleted; target topic y (for c) too", None, 9, False, id="one of them is there"),
        pytest.param("the source does not answer", None, 9, False, id="no topic"),
    ],
)
def test_a_problem_is_closed_with_its_topic(text: str, topic: str | None, at_ms: int, *, expected: bool) -> None:
    assert is_closed(text, at_ms, FORGOTTEN, topic) is expected
