"""The source is killed under load: groups continue at the target, and nothing that it alone has is lost on the way back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults import launch
from tests.faults.failover_drill import Drill, DrillResult

from shallow_mirror.migration.failover import FailoverState

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", autouse=True)
def no_fork_server_is_left() -> Iterator[None]:
    yield
    launch.stop_fork_server()


def require_nothing_lost(drill: Drill, result: DrillResult, state: FailoverState) -> None:
    for name, group in result.groups.items():
        assert group.repeated <= group.repeated_at_most, name
    assert state.phase == "failed back", drill.lines
    assert (result.lost_after_back, result.repeated_after_back) == ({}, {})
    kept = set(drill.kept_values())
    for group in drill.readers.groups:
        missing = {value for writer in drill.writers for value in writer.written} - set(drill.readers.values(group))
        assert missing <= kept, group
    assert drill.mirrors[0].wait(30) == 3


def test_groups_fail_over_and_back_and_nothing_is_lost(stoppable_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    source, target = stoppable_clusters
    with Drill(tmp_path, source, target, topic_name, partitions=3, groups=2, pause_s=0.05) as drill:
        drill.run_load(1.0)
        result = drill.fail_over()
        print(result.table(), result.steps_s)
        state = drill.fail_back(result)
        print(drill.steps_s, result.kept, result.back_s)
        require_nothing_lost(drill, result, state)


@pytest.mark.long
def test_ten_groups_of_a_busy_topic_fail_over_and_back(stoppable_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    source, target = stoppable_clusters
    with Drill(tmp_path, source, target, topic_name, partitions=12, groups=10, pause_s=0.01) as drill:
        drill.run_load(10.0)
        result = drill.fail_over()
        print(result.table(), result.steps_s)
        state = drill.fail_back(result)
        require_nothing_lost(drill, result, state)
