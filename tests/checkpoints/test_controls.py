from __future__ import annotations

from pathlib import Path

import pytest

from shallow_mirror.checkpoints.controls import open_controls, open_controls_to_read
from shallow_mirror.errors import OffsetMapConflictError


def test_of_each_topic_the_newest_row_counts(tmp_path: Path) -> None:
    controls = open_controls(str(tmp_path), "deltalake", None)
    assert controls.paused() == {}
    controls.add("pause", ["a", "b"])
    controls.add("resume", ["b"])
    controls.add("resume", ["never paused"])
    assert open_controls_to_read(str(tmp_path), None).paused().keys() == {"a"}
    controls.add("pause", ["b"])
    controls.add("resume", ["a"])
    assert controls.paused().keys() == {"b"}


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    open_controls(str(tmp_path), "deltalake", None).add("pause", ["a"])
    (tmp_path / "controls" / "_delta_log" / "00000000000000000000.json").write_text("nonsense", encoding="utf-8")
    with pytest.raises(OffsetMapConflictError, match="controls is not a readable Delta table"):
        open_controls(str(tmp_path), "deltalake", None).paused()
