"""Writers and groups move to another cluster and back, while they run, and every group reads every record once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.migration.migrations import running_application

from shallow_mirror.migration.session import Options, roll_back, run_migration
from shallow_mirror.migration.state import Phase

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(200)]

PARTITIONS = 12


def test_writers_and_groups_move_and_come_back_and_every_group_reads_every_record_once(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    opened = running_application(tmp_path, two_clusters, topic_name, PARTITIONS, reverse={"start": "conductor"})
    with opened as (made, application, operator):
        options = Options(launch=made.launch)
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
