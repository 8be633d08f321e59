"""A conductor that was suspended does not take back topics that the reverse mirror may write to by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.test_migration_file import written

from shallow_mirror.checkpoints.logs.topics import ControlAction, Controls
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.migration import Options, passage as passage_module, session
from shallow_mirror.migration.passage import Passage
from shallow_mirror.migration.steps import Direction


def test_topics_that_the_reverse_mirror_has_received_are_not_taken_back_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(config: MirrorConfig, action: ControlAction, topics: Sequence[str]) -> None:
        """Ask no cluster, as there is none."""
        Controls.open(config.tables).add(action, topics)

    monkeypatch.setattr(passage_module, "add_noted", add)
    files = written(tmp_path)
    ours, theirs = Controls.open(files.mirror.tables), Controls.open(files.reverses["all"].tables)
    with closing(Passage(files, files.config.waves[0], Direction.MOVE)) as passage:
        passage.use_topics(["orders"])
        ours.add("hand-over", ["orders"])
        passage.resume()
        assert not ours.read().moving
        ours.add("hand-over", ["orders"])
        ours.add("handed-over", ["orders"])
        theirs.add("receive", ["orders"])
        with pytest.raises(
            ConfigError, match=r"orders were handed over to mirror .* in a ring. The way back is `shallow-mirror mig"
        ):
            passage.resume()
        assert ours.read().moving == {"orders"}
    with closing(Passage(files, files.config.waves[0], Direction.ROLLBACK)) as passage:
        passage.use_topics(["orders"])
        theirs.add("hand-over", ["orders"])
        passage.resume()
        assert not theirs.read().moving, "a rollback that is aborted"


def test_a_comparison_reports_its_progress_to_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written(tmp_path)
    received: list[object] = []

    def verify(*_: object, on_progress: Callable[[object], None], **__: object) -> object:
        on_progress("half of it")
        raise RetriableError("ENDS", "here")

    monkeypatch.setattr(passage_module, "verify_mirror", verify)
    options = Options(on_progress=received.append)
    opened = session._passage(files, files.config.waves[0], session.read_state(files), Direction.MOVE, options)
    with closing(opened) as passage:
        passage.use_topics(["orders"])
        with pytest.raises(RetriableError, match="ENDS"):
            passage.compare({})
    assert received == ["half of it"]


@pytest.mark.parametrize("left", [{}, {"billing": {"orders"}}], ids=["deleted", "still there"])
def test_groups_whose_offsets_were_deleted_since_they_were_listed_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: dict[str, set[str]]
) -> None:
    files = written(tmp_path)
    found = iter([{"billing": {"orders"}}, left])

    def refuse(*_: object, **__: object) -> object:
        raise ConfigError("--group billing: no group of this name has committed offsets on the source")

    monkeypatch.setattr(passage_module, "sync_groups", refuse)
    monkeypatch.setattr(Passage, "group_offsets", lambda _: next(found))
    wave = files.config.waves[0].model_copy(update={"groups": ["billing"]})
    with closing(Passage(files, wave, Direction.MOVE)) as passage:
        passage.use_topics(["orders"])
        if left:
            with pytest.raises(ConfigError, match="no group of this name"):
                passage.move_groups(is_applied=False)
        else:
            assert passage.move_groups(is_applied=False) is None
