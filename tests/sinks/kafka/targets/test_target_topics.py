"""Which target topic gets the rest of a source topic, where topics were deleted and created again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.sinks.two_strict_clusters import A, Clusters, client_of, create_target
from tests.support.mirror_runs import config

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import topic_presence
from shallow_mirror.checkpoints import Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.types import TargetPartition

FORMER = TargetPartition("target", "of a topic that was deleted", 0)


@pytest.fixture
def opened(clusters: Clusters) -> Iterator[tuple[Cluster, Cluster]]:
    limits = dict.fromkeys(target_topic_policy.TIMESTAMP_LIMITS, str(target_topic_policy.NO_LIMIT_MS))
    create_target(clusters.target, "target", 2, **limits, **target_topic_policy.FORCED_WHERE_PRESERVED)
    source, target = Cluster(client_of(clusters.source)), Cluster(client_of(clusters.target))
    with closing(source), closing(target):
        yield source, target


def prepare(
    clusters: Clusters, opened: tuple[Cluster, Cluster], folder: Path, offsets: str, topic_ids: dict[str, str]
) -> TargetTopics:
    settings = config(folder, clusters.source.bootstrap, clusters.target.bootstrap, [".*"], topics={"offsets": {".*": offsets}})
    targets = TargetTopics(settings, *opened, positions={A: Position(3, FORMER, target_end=3)}, route=lambda _: "target")
    targets.leave_former(topic_ids)
    targets.prepare({"orders": 2}, Deadline.after_ms(10_000, time.monotonic))
    return targets


def test_a_topic_that_was_created_again_at_the_source_may_have_a_new_target_where_it_is_preserved(
    clusters: Clusters, opened: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    """The remedy of "is not new": delete the target topic."""
    targets = prepare(clusters, opened, tmp_path, "preserved", {"orders": "created again"})
    assert targets.routes["orders"].target_topic_id != FORMER.topic_id


@pytest.mark.parametrize(
    ("offsets", "topic_id"),
    [("preserved", A.topic_id), ("translated", A.topic_id), ("translated", "created again")],
    ids=["same source", "same source, translated", "translated: the new topic follows the records of the one before it"],
)
def test_what_was_copied_binds_the_rest(
    clusters: Clusters, opened: tuple[Cluster, Cluster], tmp_path: Path, offsets: str, topic_id: str
) -> None:
    with pytest.raises(ConfigError, match=r"target topic target \(for orders\) was deleted and created again"):
        prepare(clusters, opened, tmp_path, offsets, {"orders": topic_id})


@pytest.mark.parametrize("is_begun", [False, True])
def test_translated_offsets_are_offered_only_before_anything_was_copied_with_preserved_ones(
    clusters: Clusters, opened: tuple[Cluster, Cluster], tmp_path: Path, is_begun: bool
) -> None:
    """Later the change is refused if the setting has changed records that no decision names."""
    clusters.target.log("target").configs["message.timestamp.type"] = "LogAppendTime"
    deadline = Deadline.after_ms(10_000, time.monotonic)
    before = TargetPartition("target", opened[1].metadata(["target"], deadline).topics["target"].topic_id, 0)
    offsets = {"offsets": {".*": "preserved"}}
    settings = config(tmp_path, clusters.source.bootstrap, clusters.target.bootstrap, [".*"], topics=offsets)
    positions = {A: Position(3, before, target_end=3)} if is_begun else {}
    targets = TargetTopics(settings, *opened, positions=positions, route=lambda _: "target")
    with pytest.raises(ConfigError, match=r"target topic target has message\.timestamp\.type=LogAppendTime: .* Set it") as raised:
        targets.prepare({"orders": 2}, deadline)
    assert ("topics.offsets: translated" in str(raised.value)) is not is_begun


def deleted(clusters: Clusters) -> None:
    clusters.target.delete_topic("target")


def kept(_clusters: Clusters) -> None:
    """Leave what has the name, which has another id than the map."""


@pytest.mark.parametrize(("change", "was"), [(deleted, "was deleted, with"), (kept, "was deleted and created again")])
@pytest.mark.parametrize("offsets", ["preserved", "translated"])
def test_with_isolation_a_start_leaves_out_a_target_topic_that_is_gone_and_prepares_the_others(
    clusters: Clusters,
    opened: tuple[Cluster, Cluster],
    tmp_path: Path,
    offsets: str,
    change: Callable[[Clusters], None],
    was: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_presence, "NEW_TOPIC_PATIENCE_MS", 1.0)
    clusters.source.create_topic("users", 1)
    limits = dict.fromkeys(target_topic_policy.TIMESTAMP_LIMITS, str(target_topic_policy.NO_LIMIT_MS))
    create_target(clusters.target, "users", 1, **limits, **target_topic_policy.FORCED_WHERE_PRESERVED)
    change(clusters)
    settings = config(tmp_path, clusters.source.bootstrap, clusters.target.bootstrap, [".*"], on_error="isolate")
    targets = TargetTopics(
        settings,
        *opened,
        positions={A: Position(3, FORMER, target_end=3)},
        route=lambda topic: "target" if topic == "orders" else topic,
        isolates=True,
    )
    targets.leave_former({"orders": A.topic_id})
    targets.prepare({"orders": 2, "users": 1}, Deadline.after_ms(10_000, time.monotonic))
    assert list(targets.gone) == ["orders"]
    assert f"target topic target (for orders) {was}" in targets.gone["orders"]
    assert targets.routes["orders"].target_topic_id == FORMER.topic_id, "a task compares it, and writes nothing"
    assert targets.routes["users"].target_topic == "users"
    assert clusters.target.asked("CreateTopics") == 0
