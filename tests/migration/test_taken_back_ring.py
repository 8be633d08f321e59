"""A hand-over that is taken back while both mirrors run: the first mirror ends, and no record goes round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.migration.migrations import Scene, scene
from tests.migration.test_drill import Silent
from tests.support import mirror_runs as runs

from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.migration import Options, Phase, run_migration
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.steps import Direction

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300)]

PATIENCE_S = 60.0


def controls_of(made: Scene) -> Controls:
    return Controls.open(made.files().mirror.tables)


@pytest.mark.long
def test_a_topic_that_is_taken_back_while_the_reverse_mirror_runs_is_copied_in_one_direction_only(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    runs.create_topic(source, topic_name)
    before, after, later = ([f"{name}-{number}" for number in range(10)] for name in ("before", "after", "later"))
    runs.write(source, topic_name, before)
    with scene(tmp_path, two_clusters, [topic_name], [], reverse={"start": "conductor"}) as made:
        made.start_forward()
        (forward,) = made.mirrors
        moved = run_migration(made.files(), Silent({}), Options(launch=made.launch))
        assert moved.waves["all"].phase is Phase.MOVED
        backward = made.mirrors[1]
        runs.write(target, topic_name, after)
        runs.wait_for("copies at the source", lambda: runs.read_values(source, topic_name) == [*before, *after])

        controls_of(made).add("take-back", [topic_name])  # as a conductor does that was suspended before it passed
        assert forward.wait(PATIENCE_S) == 2, forward.log()[-2000:]
        assert f"{topic_name} was taken back from a migration: " in forward.log()
        runs.write(target, topic_name, later)
        runs.wait_for("copies at the source", lambda: runs.read_values(source, topic_name) == [*before, *after, *later])

        again = made.start_mirror(made.mirror_file)
        assert again.wait(PATIENCE_S) == 2, "a start would copy what came back a second time"
        controls_of(made).add("hand-over", [topic_name])
        third = made.start_mirror(made.mirror_file)
        with closing(Passage(made.files(), made.files().config.waves[0], Direction.MOVE)) as passage:
            passage.use_topics([topic_name])
            runs.wait_for("a confirmed hand-over", lambda: topic_name in passage.controls().handed_over)
        assert third.exit_code is None, third.log()[-2000:]
        assert backward.exit_code is None, backward.log()[-2000:]
    assert runs.read_values(target, topic_name) == [*before, *after, *later]
    assert runs.read_values(source, topic_name) == [*before, *after, *later]
