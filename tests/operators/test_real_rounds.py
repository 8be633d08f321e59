"""Scripts of operators' actions on real brokers; more of them with `make faults FAULTS="operators --brokers"`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.operators.actions import Action, CreateTopic, DeleteTopic, Pause, PutBackTables, Resume, Run, Write
from tests.operators.real_rounds import perform_on
from tests.operators.scripts import Done
from tests.operators.world import World

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(120)]


@pytest.fixture
def performed(two_clusters: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    def perform(script: Sequence[Action]) -> Done:
        suffix = f"-{request.node.name.partition('_')[2][:8]}{os.getpid()}"
        return perform_on(two_clusters.source.bootstrap, two_clusters.target.bootstrap, script, tmp_path / "world", suffix)

    return perform


def test_a_mirror_goes_on_behind_a_kill_a_pause_and_older_tables(performed: Any) -> None:
    killed = (Write(0, 0, 2), Run(kill_at=18, is_behind=True), Pause(0), Write(0, 0, 1), Write(1, 0, 1), Run(), Resume(0))
    done = performed((*killed, Run(), PutBackTables(1)))
    assert done.finding is None, done.events
    assert (done.kills, done.remedies) == (1, 1)


def test_a_topic_that_is_deleted_and_created_again_has_a_way_on(performed: Any) -> None:
    done = performed((Write(0, 0, 1), Run(), DeleteTopic(0), CreateTopic(0, 1), Write(0, 0, 2)))
    assert done.finding is None, done.events
    assert done.remedies > 0


def test_the_rounds_find_a_record_that_is_copied_twice(performed: Any) -> None:
    class CopyAgain:
        def perform(self, world: World) -> None:
            (record,) = world.logs[world.key_of(world.topics[0], 0)].records
            world.target.produce(world.topics[0], 0, [record.value])

    assert "twice" in (performed((Write(0, 0, 1), Run(), CopyAgain())).finding or "")
