"""Writers and groups move to another cluster and back, while they run, and every group reads every record once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.migration.application import Application
from tests.migration.migrations import Operator, scene
from tests.support import mirror_runs as runs

from shallow_mirror.migration.session import Options, roll_back, run_migration
from shallow_mirror.migration.state import Phase

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(200)]

PARTITIONS = 12


def test_writers_and_groups_move_and_come_back_and_every_group_reads_every_record_once(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    groups = [f"{topic_name}.{number}" for number in range(3)]
    runs.create_topic(source, topic_name, PARTITIONS)
    with (
        scene(tmp_path, two_clusters, [topic_name], groups, reverse={"start": "conductor"}) as made,
        Application(topic_name, PARTITIONS, groups) as application,
    ):
        application.start(source)
        made.start_forward()
        time.sleep(1)
        operator = Operator(application, {"east": source, "west": target})
        options = Options(launch=made.launch)
        # A group has offsets at the source only after it was stopped once.
        application.stop_groups()
        for group in application.groups:
            group.start(source)

        moved = run_migration(made.files(), operator, options)
        assert moved.waves["all"].phase is Phase.MOVED, operator.lines
        time.sleep(1)
        back = roll_back(made.files(), operator, options=options)
        assert back.waves["all"].phase is Phase.RETURNED, operator.lines
        application.stop_writers()
        application.await_everything_read()
        print("stopped", application.stopped_s, {step: detail["seconds"] for step, detail in operator.details.items()})
    assert application.differences() == {}
    assert sum(application.written.values()) > 100
    assert max(application.stopped_s) < 10
