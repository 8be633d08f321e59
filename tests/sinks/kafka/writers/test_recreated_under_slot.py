"""A target log that is created again under a slot, at any of its requests: the slot ends with the topic's name or without it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.fakes.changes import AS_IT_SHOULD, after, dropped_after, error
from tests.sinks.kafka.writers.test_preserved_writer import preserving
from tests.sinks.slots.test_left_out_ranges import left
from tests.sinks.two_strict_clusters import A, B, Clusters, planned
from tests.support.record_batches import batch, marker

from shallow_mirror.broker.cluster import topic_presence
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_presence, "NEW_TOPIC_PATIENCE_MS", 1.0)


def job_of(clusters: Clusters, *, is_preserved: bool, **changes: Any) -> KafkaSlotJob:
    settings = {"leaves_out": True, "isolates": True} | changes
    if is_preserved:
        return preserving(clusters, {A: 0, B: 0}, **settings)
    return clusters.job({A: 0, B: 0}, **settings)


def recreate(clusters: Clusters, partitions: int = 2) -> None:
    clusters.target.delete_topic("copy")
    clusters.target.create_topic("copy", partitions, topic_id=uuid.uuid4())


def seed(clusters: Clusters) -> None:
    """Batches, holes, and an aborted transaction: a slot that preserves offsets sends fillers among them."""
    source = clusters.source
    for topic_partition in (("orders", 0), ("orders", 1)):
        source.seed(topic_partition, batch(0, 2), batch(5, 2))
        source.seed(topic_partition, batch(7, 2, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0))
        source.seed(topic_partition, marker(9, 0, 9), batch(10, 3), batch(20, 1), batch(21, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("is_preserved", [False, True], ids=["translated", "preserved"])
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("performed", range(0, 6, 2))
@pytest.mark.parametrize("fails", [None, "dropped", 6])
def test_a_log_that_is_created_again_at_any_produce_request_leaves_out_its_topic(
    clusters: Clusters, is_preserved: bool, partitions: int, performed: int, fails: object
) -> None:
    seed(clusters)
    job = job_of(clusters, is_preserved=is_preserved, fetch_bytes=200)
    change = after(lambda: recreate(clusters, partitions))
    further = [] if fails is None else [dropped_after() if fails == "dropped" else error(int(str(fails)))]
    clusters.target.change("Produce", *[AS_IT_SHOULD] * performed, change, *further)
    result = clusters.run(job, planned(A, 22), planned(B, 22))
    if clusters.target.asked("Produce") > performed:
        assert {name for _, _, name, _ in left(result).values()} <= {"TopicGoneError", "PreservedLogDamagedError"}
        assert left(result).keys() == {A, B}
    assert not result.segments or not left(result)
