"""What becomes of the archive of a topic that was deleted at the source."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster
from tests.support.archives import CLUSTER_ID, NOW_MS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.logs.topics.deleted_topics import DeletedTopicsTable, TopicIncarnation
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.archive.status import gather_archive_status
from shallow_mirror.operations.archive.status_view import render
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks.archive import Expiry, retention_of
from shallow_mirror.sinks.archive.deleted_topics import DeletedTopics
from shallow_mirror.types import SourcePartition

pytestmark = pytest.mark.thorough

DAY_MS = 86_400_000
_TOPIC_AUTHORIZATION_FAILED, _UNKNOWN_TOPIC_OR_PARTITION = 29, 3


def partition_of(topic: str, number: int) -> SourcePartition:
    return SourcePartition(topic, base64.urlsafe_b64encode(bytes([number] * 16)).decode().rstrip("="), 0)


ORDERS, RECREATED, PAYMENTS = partition_of("orders", 1), partition_of("orders", 2), partition_of("payments", 3)


def topic_id_of(source: SourcePartition) -> uuid.UUID:
    return uuid.UUID(bytes=base64.urlsafe_b64decode(source.topic_id + "=="))


class Scene:
    """An archive of `orders` and `payments`, each in objects of its own, and its source."""

    def __init__(self, folder: Path, source: StrictCluster, keep: str = "30 days") -> None:
        self.source = source
        config = archive_config(folder, deleted_topics={"keep": keep})
        self.archive = ArchiveOfTest(config)
        for partition in (ORDERS, PAYMENTS):
            source.create_topic(partition.topic, topic_id=topic_id_of(partition))
            self.archive.archive({partition: [batch(0, 10)]})
        self.cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": source.bootstrap}))
        self.cluster_id = CLUSTER_ID
        self.table = DeletedTopicsTable.of_archive(TableStorage(config.table_location))

    def expire(self, day: float) -> list[SourcePartition]:
        """Expire as a run that starts at that day. Return the partitions that have visible data."""
        config, at_ms = self.archive.config, NOW_MS + int(day * DAY_MS)
        deleted = DeletedTopics(
            self.cluster,
            self.cluster_id,
            self.table,
            config.deleted_topics.keep_s,
            run_epoch=1,
            deadline=lambda: Deadline.after_ms(5_000, time.monotonic),
            now_ms=lambda: at_ms,
        )
        table = ArchiveTable.open(config.tables)
        owner, store = self.archive.archive_owner, self.archive.store
        Expiry(owner, table, store, retention_of(config.retention), now_ms=lambda: at_ms, deleted_topics=deleted).run()
        return [row.segment.source for row in ArchiveTable.open(config.tables).segments()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with StrictCluster(cluster_id=CLUSTER_ID) as source:
        scene = Scene(tmp_path, source)
        yield scene
        scene.cluster.close()


def test_the_archive_of_a_deleted_topic_is_deleted_so_long_after_a_run_first_missed_it(scene: Scene) -> None:
    assert scene.expire(0) == [ORDERS, PAYMENTS]
    scene.source.delete_topic("orders")
    assert scene.expire(10) == [ORDERS, PAYMENTS]
    assert scene.table.since_ms() == {TopicIncarnation("orders", ORDERS.topic_id): NOW_MS + 10 * DAY_MS}
    assert scene.expire(39.9) == [ORDERS, PAYMENTS]
    assert scene.expire(40) == [PAYMENTS]
    assert verify_archive(scene.archive.config, is_deep=True).is_equal
    assert scene.expire(50) == [PAYMENTS]


def test_a_topic_that_was_created_again_is_another_one(scene: Scene) -> None:
    scene.source.delete_topic("orders")
    scene.source.create_topic("orders", topic_id=topic_id_of(RECREATED))
    scene.archive.archive({RECREATED: [batch(0, 5)]})
    assert scene.expire(0) == [ORDERS, RECREATED, PAYMENTS]
    assert scene.expire(30) == [RECREATED, PAYMENTS]


def test_nothing_is_deleted_by_default(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with StrictCluster(cluster_id=CLUSTER_ID) as source:
        scene = Scene(tmp_path, source, keep="forever")
        source.delete_topic("orders")
        assert scene.expire(0) == [ORDERS, PAYMENTS]
        assert f"topic orders (id {ORDERS.topic_id}) was deleted at the source: what is archived of it is kept" in caplog.text
        assert scene.expire(9_999) == [ORDERS, PAYMENTS]
        scene.cluster.close()


def test_what_is_missed_once_and_is_there_again_is_counted_from_the_next_time(scene: Scene) -> None:
    scene.source.delete_topic("orders")
    scene.expire(0)
    scene.source.create_topic("orders", topic_id=topic_id_of(ORDERS))  # brokers that had not loaded their metadata
    assert scene.expire(40) == [ORDERS, PAYMENTS]
    assert scene.table.since_ms() == {}
    scene.source.delete_topic("orders")
    assert scene.expire(50) == [ORDERS, PAYMENTS]
    assert scene.expire(79) == [ORDERS, PAYMENTS]
    assert scene.expire(80) == [PAYMENTS]


def test_a_topic_is_missed_by_two_responses_before_anything_is_deleted(tmp_path: Path) -> None:
    with StrictCluster(cluster_id=CLUSTER_ID) as source:
        scene = Scene(tmp_path, source, keep="1 ms")
        source.delete_topic("orders")
        assert scene.expire(0) == [ORDERS, PAYMENTS]
        assert scene.expire(1) == [PAYMENTS]
        scene.cluster.close()


def test_what_a_broker_lacks_that_has_just_started_is_not_deleted(scene: Scene) -> None:
    """As where the archive runs once a day, right after the source was started."""
    for day in (0, 40):
        scene.source.change("Metadata", error(_UNKNOWN_TOPIC_OR_PARTITION, ("orders", -1)))
        assert scene.expire(day) == [ORDERS, PAYMENTS]
        assert scene.table.since_ms() == {TopicIncarnation("orders", ORDERS.topic_id): NOW_MS}


def test_several_former_topics_of_one_name_expire(scene: Scene) -> None:
    scene.archive.archive({RECREATED: [batch(0, 5)]})
    scene.source.delete_topic("orders")
    assert scene.expire(0) == [ORDERS, RECREATED, PAYMENTS]
    assert scene.expire(30) == [PAYMENTS]


def test_a_missing_permission_is_no_deletion(scene: Scene) -> None:
    scene.source.delete_topic("orders")
    scene.expire(0)

    scene.source.change_always("Metadata", error(_TOPIC_AUTHORIZATION_FAILED))
    assert scene.expire(40) == [ORDERS, PAYMENTS]


def test_a_source_that_does_not_answer_or_is_another_one_deletes_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.source.delete_topic("orders")
    scene.expire(0)
    scene.cluster_id = "another"
    assert scene.expire(40) == [ORDERS, PAYMENTS]
    assert f"deleted topics were not looked for: cluster {CLUSTER_ID} answers" in caplog.text
    scene.cluster_id = CLUSTER_ID
    scene.cluster.close()
    scene.cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": "127.0.0.1:1"}))
    assert scene.expire(40) == [ORDERS, PAYMENTS]
    assert "deleted topics were not looked for, nothing of them is deleted" in caplog.text


def test_the_status_says_which_topics_were_deleted(scene: Scene) -> None:
    scene.source.delete_topic("orders")
    scene.expire(0)
    status = gather_archive_status(scene.archive.config)
    (deleted,) = status.deleted_topics
    assert (deleted.topic, deleted.topic_id, deleted.size_bytes) == ("orders", ORDERS.topic_id, len(batch(0, 10)))
    assert (deleted.missed_since_ms, deleted.kept_until_ms) == (NOW_MS, NOW_MS + 30 * DAY_MS)
    assert status.document()["deleted_topics"][0]["topic"] == "orders"
    expected = "was deleted at the source, missed since 2023-11-14T22:13:20+00:00"
    assert any(expected in str(part) for part in render(status).renderables)  # type: ignore[union-attr]


def test_a_keep_that_is_no_duration_is_refused(tmp_path: Path) -> None:
    for keep in ("never", "0 days", "-1 day"):
        with pytest.raises(ConfigError, match="keep"):
            archive_config(tmp_path, deleted_topics={"keep": keep})
