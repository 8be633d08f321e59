"""What the monitor of a running mirror makes of rows in `controls`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.checkpoints.controls import Controls
from shallow_mirror.errors import RetriableError
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.runner.topic_monitor import TopicMonitor


class Cycles:
    """`answer`: whether what was taken back may be copied."""

    def __init__(self, answer: Callable[[], bool]) -> None:
        self._answer = answer
        self.requested: list[Collection[str]] = []

    def exempt(self, topics: frozenset[str], returned: frozenset[str]) -> None: ...

    def may_copy_again(self, returned: Collection[str]) -> bool:
        self.requested.append(returned)
        return self._answer()


def no_answer() -> bool:
    raise RetriableError("BROKER_NOT_AVAILABLE", "the source does not answer")


@pytest.mark.parametrize(
    ("answer", "left"),
    [(lambda: True, set()), (lambda: False, {"orders"}), (no_answer, {"orders"})],
    ids=["no other mirror copies it", "another mirror copies it", "the source does not answer"],
)
def test_a_topic_that_was_taken_back_is_planned_only_where_no_other_mirror_brings_it_back(
    tmp_path: Path, answer: Callable[[], bool], left: set[str]
) -> None:
    controls, paused_path, cycles = Controls.open(str(tmp_path)), tmp_path / "paused.json", Cycles(answer)
    config: Any = SimpleNamespace()
    targets: Any = SimpleNamespace()
    given: Any = cycles
    held: Any = SimpleNamespace()
    monitor = TopicMonitor(
        config, targets, (), controls, paused_path, cycles=given, held=held, positions=dict, report=lambda _: None
    )
    controls.add("hand-over", ["orders"])
    monitor._read_controls()
    assert planner_state.read_paused_topics(paused_path) == {"orders"}
    assert cycles.requested == []
    controls.add("take-back", ["orders"])
    monitor._read_controls()
    assert cycles.requested == [{"orders"}]
    assert planner_state.read_paused_topics(paused_path) == left
