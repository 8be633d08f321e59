"""What is in the way of a migration is named before anything is written; and who must act, while it waits."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from tests.groups.group_runs import consume, member
from tests.migration.migrations import Scene, scene
from tests.support import mirror_runs as runs
from tests.support.console_entry import console

from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs import MigrationLog
from shallow_mirror.checkpoints.tables import TableStorage

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(300)]


def rows(made: Scene) -> int:
    return len(MigrationLog.open(TableStorage(made.files().config.table_location), "drill").rows())


def change(path: Path, **changes: Any) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**document, **changes}), encoding="utf-8")


def wave(topic: str, group: str, **changes: Any) -> dict[str, Any]:
    return {"name": "all", "topics": [topic], "groups": [group], "reverse": "reverse.yaml", **changes}


def test_everything_in_the_way_is_named_before_anything_is_written(two_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    topic, other, group = topic_name, f"{topic_name}-other", f"{topic_name}.group"
    with scene(tmp_path, two_clusters, [topic, other], [group]) as made:
        for name in (topic, other):
            runs.create_topic(source, name, 2)
            runs.write(source, name, ["1", "2"])
        change(made.file, waves=[wave(topic, group)])
        change(made.reverse_file, topics={"include": [topic]})

        def refused(command: str, *options: str) -> str:
            done = console("migrate", command, str(made.file), *options)
            assert done.code in (1, 2), (done.lines, done.stderr)
            assert rows(made) == 0
            return "\n".join(done.lines) + done.stderr

        assert "run the mirror once" in refused("run")
        made.start_forward()
        settings = made.files().mirror
        runs.wait_for("both topics", lambda: len(runs.positions(settings)) == 4)
        assert "has no group with committed offsets" in refused("plan")
        consume(source, group, topic, 2)
        consume(source, group, other, 2)
        assert f"group {group} reads {other} as well" in refused("run")

        change(made.file, waves=[wave("nothing.*", group), wave(topic, group, name="second", reverse=None)])
        assert "nothing.* matches no topic of east" in refused("plan")
        change(made.file, waves=[wave(f"({topic}|{other})", group, reverse=None)])
        with member(target, group, topic) as consumer:
            while not consumer.assignment():
                consumer.poll(0.1)
            assert "is active at west" in refused("run")
        assert console("pause", str(made.mirror_file), topic).code == 0
        assert f"{topic} is paused: `shallow-mirror resume " in refused("run")
        assert console("resume", str(made.mirror_file), topic).code == 0
        change(made.file, waves=[wave(f"({topic}|{other})", group)])
        assert "has to copy exactly the topics of the wave" in refused("run")
        change(
            made.file, waves=[wave(f"({topic}|{other})", group, reverse=None)], writers={"stop": "deny", "principals": ["User:a"]}
        )
        assert "has no authorizer" in refused("run")
        change(made.file, waves=[wave(f"({topic}|{other})", group, reverse=None)], writers={"quiet": "500 ms"})

        change(made.file, waves=[wave(f"({topic}|{other})", group)])
        change(made.reverse_file, topics={"include": [topic, other]})
        runs.set_topic(source, topic, {"compression.type": "lz4"})
        assert f"target topic {topic}: has compression.type=lz4" in refused("run")
        runs.set_topic(source, topic, {"compression.type": "producer"})
        with closing(Consumer({"bootstrap.servers": source, "group.id": group, "log_level": 0})) as consumer:
            consumer.commit(offsets=[TopicPartition(other, 0, 500)], asynchronous=False)
            assert f"offset 500 of {other}-0, whose log ends at 2" in refused("run")
            consumer.commit(offsets=[TopicPartition(other, 0, 2)], asynchronous=False)
        change(made.file, waves=[wave(f"({topic}|{other})", group, reverse=None)])

        planned = console("migrate", "plan", str(made.file), "--json")
        assert planned.code == 0, planned.stderr
        (plan,) = json.loads(planned.lines[0])["waves"]
        assert plan["downtime_s"] > 0
        assert all(step["seconds"] > 0 for step in plan["steps"] if step["step"] == "verify")

        log = MigrationLog.open(TableStorage(made.files().config.table_location), "drill")
        log.take_over(RunIdentity.of_this_process(), "f", lambda: 0)
        done = console("migrate", "run", str(made.file))
        assert done.code == 2
        assert f"(pid {os.getpid()}) is running" in done.stderr
        with member(source, group, topic) as consumer:
            while not consumer.assignment():
                consumer.poll(0.1)
            done = console("migrate", "run", str(made.file), "--no-wait", "--take-over")
            assert done.code == 5, done.stderr
            assert "stop the consumers of groups" in done.stderr.splitlines()[-1]
        change(made.mirror_file, topics={"include": [topic]})
        done = console("migrate", "run", str(made.file))
        assert done.code == 2
        assert "was changed while wave all is under way" in done.stderr
        change(made.mirror_file, topics={"include": [topic, other], "discovery": "0 seconds"})
        done = console("migrate", "abort", str(made.file))
        assert done.code == 0, done.stderr
        assert re.search(r"start the consumers of .* at east", "\n".join(done.lines))
        assert console("migrate", "run", str(made.file)).code == 0
        done = console("migrate", "abort", str(made.file))
        assert "nothing is under way" in done.stderr
        assert "names no reverse mirror" in console("migrate", "rollback", str(made.file)).stderr
        assert "hand" in console("resume", str(made.mirror_file), topic).stderr
        for command in ("pause", "resume"):  # of the operator: what the migration handed over stays handed over
            assert "a migration has handed it over" in console(command, str(made.mirror_file), topic).lines[0]
        assert console("resume", str(made.mirror_file), topic).code == 2
        status = json.loads(console("migrate", "status", str(made.file), "--json").lines[0])
        assert status["waves"][0]["phase"] == "moved"
