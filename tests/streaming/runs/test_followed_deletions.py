"""`topics.deleted: delete`: a target topic is deleted once nothing speaks against it, and kept at every doubt."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.fakes.changes import error
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch, marker

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.logs.topics import DeletedTopicsTable, TopicControls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import RetriableError
from shallow_mirror.streaming.runs.followed_deletions import FollowedDeletions, duration
from shallow_mirror.types import SourcePartition, TargetPartition

DAY_MS = 86_400_000
NO_CONTROLS = TopicControls(paused={}, requested={}, handed_over={}, received=frozenset())


def id_of(cluster: StrictCluster, topic: str) -> str:
    return base64.urlsafe_b64encode(cluster.topic_ids[topic].bytes).decode().rstrip("=")


class Scene:
    """Source topic `orders`, which was copied to `copy` up to offset 3 and a marker, and was deleted. The delay is a day."""

    def __init__(self, folder: Path, source: StrictCluster, target: StrictCluster) -> None:
        self.source, self.target = source, target
        for topic in ("orders", "users"):
            source.create_topic(topic, topic_id=uuid.uuid4())
        for topic in ("copy", "people"):
            target.create_topic(topic, topic_id=uuid.uuid4())
            target.seed(
                (topic, 0), batch(0, 3, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0), marker(3, 0, 9)
            )
        self.orders = SourcePartition("orders", id_of(source, "orders"), 0)
        users = SourcePartition("users", id_of(source, "users"), 0)
        self.positions = {
            self.orders: Position(3, TargetPartition("copy", id_of(target, "copy"), 0), target_end=3),
            users: Position(3, TargetPartition("people", id_of(target, "people"), 0), target_end=3),
        }
        self.first_copies = {_copy(self): 0}
        self.controls, self.included, self.now_ms = NO_CONTROLS, True, 1_000
        self.cluster_id = source.cluster_id
        self.table = DeletedTopicsTable.of_mirror(TableStorage(str(folder)))
        self.clock = SleepingClock()
        self.clients: tuple[Cluster, Cluster] = client_of(source, self.clock), client_of(target, self.clock)
        source.delete_topic("orders")

    def follow(self) -> dict[str, str]:
        """Return what another query of the mirror says first."""
        self.deletions = FollowedDeletions(
            self.table,
            self.positions,
            lambda: self.positions,
            lambda _: self.first_copies,
            lambda: self.controls,
            source_cluster_id=self.cluster_id,
            is_included=lambda _topic: self.included,
            after_s=86_400,
            run_epoch=1,
            now_ms=lambda: self.now_ms,
        )
        return self.follow_on()

    def follow_on(self) -> dict[str, str]:
        return self.deletions.follow(*self.clients, self.clock.deadline())

    def follow_twice(self) -> str:
        """Return what is said of `orders` when the delay is over."""
        self.follow()
        self.now_ms += DAY_MS
        return self.follow().get("orders", "nothing")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with StrictCluster(cluster_id="east") as source, StrictCluster(cluster_id="west") as target:
        made = Scene(tmp_path, source, target)
        with closing(made.clients[0]), closing(made.clients[1]):
            yield made


def test_the_target_topic_is_deleted_when_the_delay_is_over_and_no_other(scene: Scene) -> None:
    announced = scene.follow()["orders"]
    assert announced.endswith(
        "its target topic is deleted at 1970-01-02 00:00:01 UTC, 1 d after a run first missed it (topics.deleted_after)"
    )
    scene.now_ms += DAY_MS - 1
    assert scene.follow()["orders"] == announced
    assert scene.deletions.without_target == frozenset()
    assert scene.target.topic_ids.keys() == {"copy", "people"}
    scene.now_ms += 1
    assert "the mirror has deleted target topic copy (id " in (said := scene.follow()["orders"])
    assert said.endswith("as well (topics.deleted: delete)")
    assert scene.target.topic_ids.keys() == {"people"}
    assert (scene.follow_on()["orders"], scene.deletions.without_target) == (said, frozenset({"orders"}))
    assert "is not there any more" in scene.follow()["orders"]
    assert scene.deletions.without_target == {"orders"}
    source_created_again(scene)
    assert (scene.follow(), scene.deletions.without_target) == ({}, frozenset())


@pytest.mark.parametrize(("seconds", "said"), [(15, "15 s"), (90, "90 s"), (120, "2 min"), (10_800, "3 h"), (604_800, "7 d")])
def test_a_delay_has_a_unit_of_its_size(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def written_by_another(scene: Scene) -> None:
    scene.target.seed(("copy", 0), batch(4, 1))


def other_partition(scene: Scene) -> None:
    scene.target.delete_topic("copy")
    scene.target.create_topic("copy", 2, topic_id=uuid.UUID(bytes=base64.urlsafe_b64decode(_copy(scene).topic_id + "==")))
    scene.target.seed(("copy", 1), batch(0, 1))


def _copy(scene: Scene) -> TargetPartition:
    return scene.positions[scene.orders].target


def written_before(scene: Scene) -> None:
    scene.target.delete_topic("copy")
    scene.target.create_topic("copy", topic_id=uuid.UUID(bytes=base64.urlsafe_b64decode(_copy(scene).topic_id + "==")))
    scene.target.seed(("copy", 0), batch(0, 1), batch(1, 2))
    scene.first_copies = {_copy(scene): 1}


def target_created_again(scene: Scene) -> None:
    scene.target.delete_topic("copy")
    scene.target.create_topic("copy", topic_id=uuid.uuid4())


def source_created_again(scene: Scene) -> None:
    scene.source.create_topic("orders", topic_id=uuid.uuid4())


def paused(scene: Scene) -> None:
    scene.controls = TopicControls(paused={"orders": 1}, requested={}, handed_over={}, received=frozenset())


def handed_over(scene: Scene) -> None:
    scene.controls = TopicControls(paused={}, requested={}, handed_over={"orders": 1}, received=frozenset())


def shared(scene: Scene) -> None:
    other = SourcePartition("clicks", "id", 0)
    scene.positions[other] = Position(0, _copy(scene))


def excluded(scene: Scene) -> None:
    scene.included = False


def hidden(scene: Scene) -> None:
    scene.source.change_always("Metadata", error(29, ("orders", -1)))


@pytest.mark.parametrize(
    ("doubt", "said"),
    [
        (written_by_another, "kept: copy-0 has a batch at offset 4"),
        (written_before, "kept: copy-0 has a batch at offset 0, before the first copied record"),
        (other_partition, "kept: copy-1 has a batch at offset 0"),
        (target_created_again, "is not there any more"),
        (source_created_again, "nothing"),
        (paused, "kept: the topic is paused, or a migration has moved it"),
        (handed_over, "kept: the topic is paused, or a migration has moved it"),
        (shared, "kept: another source topic is mirrored to it"),
        (excluded, "nothing"),
        (hidden, "nothing"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_it_is_kept_at_every_doubt(scene: Scene, doubt: Callable[[Scene], None], said: str) -> None:
    doubt(scene)
    assert said in scene.follow_twice()
    assert scene.target.topic_ids.keys() == {"copy", "people"}


def test_a_source_that_comes_back_at_the_moment_of_deletion_keeps_the_target(scene: Scene) -> None:
    scene.follow()
    scene.now_ms += DAY_MS
    read, scene_positions = scene.positions, dict(scene.positions)

    class Positions(dict[SourcePartition, Position]):
        def items(self):  # type: ignore[no-untyped-def]
            if "orders" not in scene.source.topic_ids:
                source_created_again(scene)
            return super().items()

    scene.positions = Positions(scene_positions)
    assert "kept: the source has a topic of this name again" in scene.follow()["orders"]
    assert read.keys() == scene_positions.keys()
    assert "copy" in scene.target.topic_ids


def test_nothing_is_deleted_where_another_cluster_or_not_every_broker_answers(scene: Scene) -> None:
    scene.follow()
    scene.now_ms += DAY_MS
    scene.source.nodes[2] = ("127.0.0.1", 1)  # listed, and nobody listens there
    with pytest.raises(RetriableError, match="NETWORK_EXCEPTION"):
        scene.follow()
    del scene.source.nodes[2]
    scene.cluster_id = "another"
    with pytest.raises(RetriableError, match="answers as cluster east"):
        scene.follow()
    assert "copy" in scene.target.topic_ids


def test_a_target_that_refuses_names_the_right(scene: Scene) -> None:
    scene.target.change_always("DeleteTopics", error(29))
    assert "kept: target topic copy cannot be deleted: TOPIC_AUTHORIZATION_FAILED: grant Delete on topic copy" in (
        scene.follow_twice()
    )
