"""The source is killed under load: groups continue at the target, and nothing that it alone has is lost on the way back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.faults.failover_drill import Drill
from tests.groups.group_runs import consume
from tests.migration.fake_effects import KilledError
from tests.support import mirror_runs as runs
from tests.support.console_entry import console_here

from shallow_mirror.errors import ConfigError
from shallow_mirror.migration import Options
from shallow_mirror.migration.failover import divergence, fail_back, fail_over
from shallow_mirror.migration.steps import Step as WaveStep

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240)]


def require_all_read_or_kept(drill: Drill) -> None:
    kept, written = set(drill.kept_values()), set(drill.written())
    for group in drill.readers.groups:
        assert written - set(drill.readers.values(group)) <= kept, group


def test_groups_continue_when_the_source_is_killed(stoppable_clusters: Any, tmp_path: Path) -> None:
    source, target = stoppable_clusters
    with Drill(tmp_path, source, target, f"killed-{os.getpid()}", partitions=3, groups=2, pause_s=0.05) as drill:
        drill.run_load(0.5)
        try:
            result = drill.fail_over()
        finally:
            source.start()
        assert result.written > 100
        for group in result.groups.values():
            assert group.repeated <= group.repeated_at_most
        assert drill.mirrors[0].wait(30) == 3  # it was waiting for the source, and is fenced
        assert drill.start_mirror(tmp_path / "forward.yaml").wait(30) == 2


def test_what_only_the_old_source_has_is_kept_before_its_topic_is_deleted(two_clusters: Any, tmp_path: Path) -> None:
    (source, target), topic = two_clusters, f"apart-{os.getpid()}"
    with Drill(tmp_path, source, target, topic, partitions=2, groups=1, back_start="operator") as drill:
        (group,) = drill.readers.groups
        for partition in range(2):
            runs.write(source.bootstrap, topic, [f"mirrored-{partition}-{number}" for number in range(20)], partition)
        assert len(consume(source.bootstrap, group, topic, 2, 25)) == 25
        mirror = drill.start_mirror(tmp_path / "forward.yaml")
        runs.wait_for("recorded offsets", lambda: drill.recorded_groups() == [group])
        runs.wait_for("all copies", lambda: sum(runs.positions(drill.files().mirror).values()) == 40)
        mirror.stop()
        runs.write(source.bootstrap, topic, [f"diverged-{number}" for number in range(10)], 1)

        told, undone = tmp_path / "told.json", tmp_path / "undone.json"
        hooks = [
            {"name": "announce", "before": "check", "command": ["false"]},
            {
                "name": "switch",
                "after": "move groups",
                "command": ["tee", str(told)],
                "undo": {"command": ["tee", str(undone)]},
            },
        ]
        document = yaml.safe_load(drill.file.read_text(encoding="utf-8"))
        drill.file.write_text(yaml.safe_dump({**document, "hooks": hooks}), encoding="utf-8")

        refused = console_here("failover", "run", str(drill.file))
        assert (refused.code, "source cluster east answers" in refused.stderr) == (2, True)
        moved = console_here("failover", "run", str(drill.file), "--despite-source", "--skip-hook", "announce")
        assert moved.code == 0, moved.stderr
        assert "fail-over: hook announce: skipped" in moved.stderr
        switched = json.loads(told.read_text(encoding="utf-8"))
        assert (switched["step"], switched["from"], switched["to"], switched["topics"]) == (
            "move groups",
            "east",
            "west",
            [topic],
        )
        aborted = console_here("failover", "abort", str(drill.file))
        assert aborted.code == 0, aborted.stderr
        assert "aborted; start mirror" in aborted.lines[-1]
        assert json.loads(undone.read_text(encoding="utf-8"))["id"] == switched["id"].replace("/do", "/undo")
        assert "fail-over: hook switch: undo" in aborted.stderr
        assert "announce" not in aborted.stderr, "it was skipped"
        assert "an earlier fail-over was aborted at" in "\n".join(console_here("failover", "status", str(drill.file)).lines)
        again = console_here("failover", "run", str(drill.file), "--despite-source", "--skip-hook", "announce")
        assert again.code == 0, again.stderr
        assert json.loads(told.read_text(encoding="utf-8"))["id"] != switched["id"]
        read = consume(target.bootstrap, group, topic, 2)
        assert len(read) == 15
        runs.write(target.bootstrap, topic, [f"since-{number}" for number in range(5)], 0)

        late = console_here("failover", "abort", str(drill.file))
        assert (late.code, f"which east lacks: {topic}-0 offset" in late.stderr) == (2, True), late.stderr
        assert f"groups have committed offsets at west since: {group}" in late.stderr
        planned = console_here("failover", "plan", str(drill.file))
        assert f"only at east: {topic}-1 offsets 20 to 29 (10 records)" in "\n".join(planned.lines)
        waiting = console_here("failover", "back", str(drill.file), "--no-wait")
        assert (waiting.code, "as a service (the mirror" in waiting.stderr) == (5, True), waiting.stderr
        assert drill.kept_values() == [f"diverged-{number}" for number in range(10)]
        assert topic not in runs.topics_of(source.bootstrap)
        shown = console_here("failover", "status", str(drill.file))
        assert f"kept: {topic}-1 offsets 20 to 29 (10 records) of east in __diverged.{topic}-1 at west" in shown.lines


@pytest.mark.parametrize("is_topic_deleted", [False, True], ids=["expired", "topic deleted"])
def test_the_way_back_goes_on_where_records_are_gone_before_they_are_kept(
    two_clusters: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_topic_deleted: bool
) -> None:
    (source, target), topic = two_clusters, f"gone-{os.getpid()}-{is_topic_deleted:d}"
    with Drill(tmp_path, source, target, topic, partitions=1, groups=1) as drill:
        mirrored = [f"mirrored-{number}" for number in range(20)]
        runs.write(source.bootstrap, topic, mirrored)
        mirror = drill.start_mirror(tmp_path / "forward.yaml")
        runs.wait_for("all copies", lambda: sum(runs.positions(drill.files().mirror).values()) == 20)
        mirror.stop()
        fail_over(drill.files(), drill, Options(), despite_source=True)
        for first in range(0, 15, 5):
            runs.write(source.bootstrap, topic, [f"only-{number}" for number in range(first, first + 5)])
        runs.write(target.bootstrap, topic, ["since"])

        def killed(*_: object, **__: object) -> None:
            raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr(divergence, "redo", killed)
            with pytest.raises(KilledError):
                fail_back(drill.files(), drill, Options())
        if is_topic_deleted:
            runs.delete_topic(source.bootstrap, topic)
        else:
            runs.delete_records(source.bootstrap, topic, 25)
        assert fail_back(drill.files(), drill, Options(launch=drill.launch)).phase == "failed back"
        assert drill.kept_values() == ([] if is_topic_deleted else [f"only-{number}" for number in range(5, 15)])
        last = 34 if is_topic_deleted else 24
        assert f"fail-back: not kept, deleted at east before: {topic}-0 offsets 20 to {last}" in drill.lines
        assert runs.read_values(source.bootstrap, topic) == [*mirrored, "since"]


@pytest.mark.parametrize("moment", [pytest.param(WaveStep.STOP_WRITERS, marks=pytest.mark.long), WaveStep.POINT_OF_NO_RETURN])
def test_another_mirror_back_fills_a_topic_that_somebody_has_deleted_at_the_old_source(
    two_clusters: Any, tmp_path: Path, moment: WaveStep
) -> None:
    (source, target), topic = two_clusters, f"refilled-{os.getpid()}-{moment.name.lower()}"
    with Drill(tmp_path, source, target, topic, partitions=2, groups=1) as drill:
        (group,) = drill.readers.groups
        for partition in range(2):
            runs.write(source.bootstrap, topic, [f"mirrored-{partition}-{number}" for number in range(20)], partition)
        mirror = drill.start_mirror(tmp_path / "forward.yaml")
        runs.wait_for("all copies", lambda: sum(runs.positions(drill.files().mirror).values()) == 40)
        mirror.stop()
        fail_over(drill.files(), drill, Options(), despite_source=True)
        runs.write(target.bootstrap, topic, [f"since-{number}" for number in range(5)], 0)
        assert len(consume(target.bootstrap, group, topic, 2, 25)) == 25
        deleted: list[WaveStep] = []

        def delete(_wave: str, step: WaveStep) -> None:
            if step is moment and not deleted:
                deleted.append(step)
                runs.delete_topic(source.bootstrap, topic)

        drill.begun = delete  # type: ignore[method-assign, assignment]
        for _ in range(2):
            with pytest.raises(ConfigError, match=f"{topic} was deleted at east since mirror .* has begun to fill it"):
                fail_back(drill.files(), drill, Options(launch=drill.launch))
        drill.mirrors[-1].stop()
        back = tmp_path / "back.yaml"
        document = yaml.safe_load(back.read_text(encoding="utf-8"))
        back.write_text(yaml.safe_dump({**document, "mirror": f"{topic}-again", "tables": "back-again"}), encoding="utf-8")
        assert fail_back(drill.files(), drill, Options(launch=drill.launch)).phase == "failed back"
        assert drill.kept_values() == []
        for partition in range(2):
            at_source, at_target = (
                runs.read_partitions(node.bootstrap, [(topic, partition)])[topic, partition] for node in (source, target)
            )
            assert at_source == at_target
        assert len(consume(source.bootstrap, group, topic, 2, 20)) == 20


@pytest.mark.long
def test_ten_groups_of_a_busy_topic_fail_over_and_back_and_nothing_is_lost(
    stoppable_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = stoppable_clusters
    with Drill(tmp_path, source, target, topic_name, partitions=12, groups=10, pause_s=0.01) as drill:
        drill.run_load(10.0)
        result = drill.fail_over()
        for group in result.groups.values():
            assert group.repeated <= group.repeated_at_most
        state = drill.fail_back(result)
        print(result.table(), drill.steps_s)
        assert state.phase == "failed back", drill.lines
        assert (result.lost_after_back, result.repeated_after_back) == ({}, {})
        require_all_read_or_kept(drill)
        for partition in range(12):
            at_source, at_target = (
                runs.read_partitions(node.bootstrap, [(topic_name, partition)])[topic_name, partition]
                for node in (source, target)
            )
            assert at_source[: len(at_target)] == at_target
        assert drill.mirrors[0].wait(30) == 3
