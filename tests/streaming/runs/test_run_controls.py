"""The table `controls` as several threads of a run read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shallow_mirror.checkpoints.logs.topics import Controls, TopicControls
from shallow_mirror.streaming.runs.run_controls import RunControls


class SlowTable:
    """Its next read is answered with what the table had when it began, after `meanwhile`."""

    def __init__(self, table: Controls) -> None:
        self._table = table
        self.meanwhile: Any = None

    def read(self) -> TopicControls:
        controls = self._table.read()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return controls


def test_a_row_that_another_thread_has_read_meanwhile_is_not_missing(tmp_path: Path) -> None:
    """The thread beside the query of an earlier attempt may still read when the next one has begun."""
    table = Controls.open(str(tmp_path))
    table.add("pause", ["a"])
    slow: Any = SlowTable(table)
    controls = RunControls(slow)
    controls.read()

    def read_another() -> None:
        table.add("hand-over", ["b"])
        assert controls.read().moving == {"b"}

    slow.meanwhile = read_another
    assert controls.read().moving == frozenset()
    controls.require_running()
    assert controls.read().moving == controls.moving == {"b"}
