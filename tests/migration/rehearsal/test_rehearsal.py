"""A rehearsal performs every step in scratch, leaves nothing behind, and predicts how long the writers are stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.migration.migrations import left_of_rehearsals, running_application
from tests.support import mirror_runs as runs

from shallow_mirror import routing
from shallow_mirror.migration import Options, Phase, read_state, run_migration
from shallow_mirror.migration.rehearsal.rehearsal import rehearse
from shallow_mirror.migration.steps import Direction

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(400)]

PARTITIONS = 12


def test_a_rehearsal_leaves_nothing_behind_and_its_time_is_that_of_the_move(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    every = [f"{routing.REHEARSAL_PREFIX}.*"]
    opened = running_application(tmp_path, two_clusters, topic_name, PARTITIONS, include=every, reverse={"start": "conductor"})
    with opened as (made, application, operator):
        options = Options(launch=made.launch)
        report = rehearse(made.files(), operator, options=options)
        assert list(report.left) == []
        assert {topic for topic, _ in runs.positions(made.files().mirror)} == {topic_name}
        assert left_of_rehearsals(source) == left_of_rehearsals(target) == []
        assert set(report.seconds) == {Direction.MOVE, Direction.ROLLBACK}
        assert len(report.groups) == 3
        assert read_state(made.files()).waves["all"].phase is Phase.AT_SOURCE
        assert read_state(made.files()).rehearsals == ()
        print("\n".join(report.sentences()))

        assert run_migration(made.files(), operator, options).waves["all"].phase is Phase.MOVED
        predicted_s, took_s = report.writers_stopped_s[Direction.MOVE], application.stopped_s[0]
        print(f"predicted {predicted_s:.1f} s, took {took_s:.1f} s")
        application.stop_writers()
        application.await_everything_read()
        application.stop_groups()
    assert application.differences() == {}
    assert took_s / 2 < predicted_s < took_s * 2
