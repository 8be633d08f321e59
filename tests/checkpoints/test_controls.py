from __future__ import annotations

from pathlib import Path

import pytest

from shallow_mirror.checkpoints.controls import Controls
from shallow_mirror.errors import OffsetMapConflictError


def test_of_each_topic_the_newest_row_counts(tmp_path: Path) -> None:
    controls = Controls.open(str(tmp_path))
    assert controls.paused() == {}
    controls.add("pause", ["a", "b"])
    controls.add("resume", ["b"])
    controls.add("resume", ["never paused"])
    assert Controls.open(str(tmp_path)).paused().keys() == {"a"}
    controls.add("pause", ["b"])
    controls.add("resume", ["a"])
    assert controls.paused().keys() == {"b"}


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    Controls.open(str(tmp_path)).add("pause", ["a"])
    (tmp_path / "controls" / "_delta_log" / "00000000000000000000.json").write_text("nonsense", encoding="utf-8")
    with pytest.raises(OffsetMapConflictError, match="controls is not a readable Delta table"):
        Controls.open(str(tmp_path)).paused()
