"""A topic that appears after a migration, and that the mirror back would copy to the source: neither copies it, and runs say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.operators.lives import Life
from tests.operators.surroundings import world_of_two_topics

from shallow_mirror.errors import IncompleteRunError
from shallow_mirror.operations.status import gather_status
from shallow_mirror.sinks.kafka import Origin
from shallow_mirror.streaming.runs import cycle_detection
from shallow_mirror.streaming.runs.gone_topics import REMEDY_OF_NEW

pytestmark = pytest.mark.usefixtures("without_logging")

LEFT_OUT = "source topic c appeared after a migration and is not copied: mirror back would copy it back"


def test_a_run_up_to_the_log_ends_is_not_complete_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world_of_two_topics(tmp_path / "world") as world:
        assert world.run(Life()) is None
        for action in ("hand-over", "handed-over"):
            world.controls().add(action, ["a"])
        back = Origin(
            mirror="back",
            source_cluster_id=world.target.state.cluster_id,
            source_alias="west",
            target_name="{topic}",
            include=("a", "c"),
            exclude=(),
        )
        monkeypatch.setattr(cycle_detection, "read_group_notes", lambda *_, **__: {"back-origin": [back.build(10_000)]})
        world.create_source_topic("c", 1)
        world.produce("c", 0, 1)
        world.produce("b", 0, 1)
        error = world.ended_by(Life(), {}, 0.0)
        assert isinstance(error, IncompleteRunError)
        assert list(error.left_out) == [LEFT_OUT]
        assert len(world.target.read("b", 0)) == 2
        remedies = [entry.problem.remedy for entry in gather_status(world.config).problems if entry.problem.text == LEFT_OUT]
        assert remedies == [REMEDY_OF_NEW]
