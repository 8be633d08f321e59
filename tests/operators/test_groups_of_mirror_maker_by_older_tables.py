"""`mm2 groups --apply` with tables that are older than the target: nothing is committed, as by `groups --apply`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.operators.lives import Life
from tests.operators.surroundings import opened_world
from tests.support.exit_codes import exit_code

pytestmark = pytest.mark.usefixtures("without_logging")

_PROPERTIES = """
clusters = east, west
east.bootstrap.servers = {source}
west.bootstrap.servers = {target}
east->west.enabled = true
"""


def test_offsets_are_not_committed_by_tables_that_do_not_know_what_was_handed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_world(tmp_path / "world") as world:
        values = [f"record {number}" for number in range(10)]
        at_ms = world.source.state.now_ms()
        for cluster, topic in ((world.source, "a"), (world.target, "east.a")):
            cluster.create_topic(topic, 1)
            with monkeypatch.context() as patch:
                patch.setattr(cluster.state, "now_ms", lambda: at_ms)
                cluster.produce(topic, 0, values)
        world.folder.mkdir(parents=True, exist_ok=True)
        conf, properties = world.folder / "mirror.yaml", world.folder / "mm2.properties"
        conf.write_text(yaml.safe_dump(world.document), encoding="utf-8")
        properties.write_text(_PROPERTIES.format(source=world.source.bootstrap, target=world.target.bootstrap), encoding="utf-8")
        world.target.commit_group("g", "east.a", 0, 7)
        assert world.run(Life()) is None
        older = world.copied_tables(with_checkpoint=True)
        world.source.produce("a", 0, ["one more"])
        assert world.run(Life()) is None
        world.controls().add("hand-over", ["a"])
        world.put_back(older)
        for command in (("groups", str(conf)), ("mm2", "groups", str(conf), str(properties))):
            assert exit_code(*command, "--apply") == 4
            assert "OlderTablesError" in capsys.readouterr().err
        assert world.target.group_offsets("g") == {("east.a", 0): 7}
