"""Rings of three mirrors between three real clusters: one that is started last, and one that is closed while all run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs

from shallow_mirror.broker import read_group_notes
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.status import gather_status
from shallow_mirror.sinks.kafka import GROUP_SUFFIX
from shallow_mirror.streaming.runs import cycle_detection

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def nodes(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LocalKafka]]:
    started = start_clusters(tmp_path_factory.mktemp("ring"), 3)
    yield dict(zip("abc", started, strict=True))
    stop_clusters(started)


def mirror(nodes: dict[str, LocalKafka], folder: Path, name: str, topic: str) -> MirrorConfig:
    """Return the mirror `ab` from cluster a to cluster b."""
    document = {
        **runs.document(nodes[name[0]].bootstrap, nodes[name[1]].bootstrap, [topic], tables=f"tables-{name}-{topic}"),
        "mirror": f"{name}-{topic}",
    }
    for side, alias in (("source", name[0]), ("target", name[1])):
        document[side]["alias"] = alias
    return MirrorConfig.from_document(document, folder=folder)


def holds(node: LocalKafka, topic: str, count: int) -> bool:
    return topic in runs.topics_of(node.bootstrap) and len(runs.read_values(node.bootstrap, topic)) == count


def test_a_mirror_that_would_close_a_ring_of_three_is_refused(
    nodes: dict[str, LocalKafka], tmp_path: Path, spark: Any, topic_name: str
) -> None:
    runs.create_topic(nodes["a"].bootstrap, topic_name)
    runs.write(nodes["a"].bootstrap, topic_name, ["1", "2"])
    with runs.Running(mirror(nodes, tmp_path, "ab", topic_name), spark):
        runs.wait_for("the copy in b", lambda: holds(nodes["b"], topic_name, 2))
        with runs.Running(mirror(nodes, tmp_path, "bc", topic_name), spark):
            runs.wait_for("the copy in c", lambda: holds(nodes["c"], topic_name, 2))
            with pytest.raises(ConfigError, match=r"c:\S+ \(ca-\S+\) -> a:.* would be a replication ring of 3 mirrors"):
                runs.catch_up(mirror(nodes, tmp_path, "ca", topic_name), spark)
            runs.write(nodes["a"].bootstrap, topic_name, ["3"])
            runs.wait_for("the next copy in c", lambda: holds(nodes["c"], topic_name, 3))
    assert runs.read_values(nodes["a"].bootstrap, topic_name) == ["1", "2", "3"]


def test_a_ring_that_is_closed_while_all_run_ends_the_mirror_that_began_last(
    nodes: dict[str, LocalKafka], tmp_path: Path, spark: Any, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_detection, "RINGS_EVERY_S", 1.0)
    can_read = threading.Event()
    monkeypatch.setattr(
        cycle_detection,
        "read_group_notes",
        lambda *arguments, **options: read_group_notes(*arguments, **options) if can_read.is_set() else {},
    )
    for node in nodes.values():
        runs.create_topic(node.bootstrap, topic_name)
    settings = {name: mirror(nodes, tmp_path, name, topic_name) for name in ("bc", "ab", "ca")}
    with runs.Running(settings["bc"], spark) as bc:
        runs.wait_for("bc", lambda: registered(nodes["c"], settings["bc"]))
        with runs.Running(settings["ab"], spark) as ab:
            runs.wait_for("ab", lambda: registered(nodes["b"], settings["ab"]))
            with runs.Running(settings["ca"], spark) as ca:
                runs.wait_for("ca", lambda: registered(nodes["a"], settings["ca"]))
                can_read.set()
                with pytest.raises(ConfigError, match="replication ring of 3 mirrors"):
                    ca.wait_for_error()
            assert bc.error is None
            assert ab.error is None
            run = gather_status(settings["ca"]).run
            assert run is not None
            assert run.outcome == "ConfigError"


def registered(node: LocalKafka, settings: MirrorConfig) -> bool:
    admin = runs.admin(node.bootstrap)
    groups = admin.list_consumer_groups().result(30)
    return f"{settings.mirror}{GROUP_SUFFIX}" in {group.group_id for group in groups.valid}
