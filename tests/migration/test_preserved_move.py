"""A wave of preserved topics moves while its writers write: in each micro-batch its mirror reads on for records to come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.migration.migrations import running_application

from shallow_mirror.migration import Options, Phase, copying, passage, run_migration

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(200)]


def test_a_wave_of_preserved_topics_moves_while_its_writers_write(
    two_clusters: Any, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map says what was copied with the next micro-batch, so that no listing of log ends is mapped within one."""
    monkeypatch.setattr(copying, "CLOSE_S", 0.5)
    monkeypatch.setattr(passage, "FOLLOW_MS", 1_000.0)  # as the mirrors of tests do
    wave = {"name": "all", "topics": [topic_name], "groups": [f"{topic_name}.{number}" for number in range(3)]}
    opened = running_application(tmp_path, two_clusters, topic_name, 2, offsets="preserved", waves=[wave])
    with opened as (made, application, operator):
        moved = run_migration(made.files(), operator, Options(launch=made.launch))
        assert moved.waves["all"].phase is Phase.MOVED, operator.lines
        application.stop_writers()
        application.await_everything_read()
    assert application.differences() == {}
