"""A topic that is deleted, or created again, on either side, ends the copy of that topic and of no other."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.changes import after, error
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.slots.test_left_out_ranges import USERS, Run, copied, left, with_users
from tests.sinks.two_strict_clusters import A, B, Clusters, planned

from shallow_mirror.broker.cluster import topic_presence
from shallow_mirror.broker.fetch import range_reader, range_retries
from shallow_mirror.broker.produce.txn import coordinator_requests
from shallow_mirror.errors import TopicGoneError, TopicRecreatedError
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.slots import slot_task
from shallow_mirror.streaming.sources import kafka_batches
from shallow_mirror.types import PlannedRange, SourcePartition

GONE, RECREATED, UNKNOWN = "TopicGoneError", "TopicRecreatedError", "UNKNOWN_TOPIC_OR_PARTITION"

Left = tuple[int, str, str, bool]
Change = Callable[[StrictCluster, str], None]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (range_reader, slot_task, kafka_batches):
        monkeypatch.setattr(module, "PARTITION_PATIENCE_MS", 150.0)
    monkeypatch.setattr(range_retries, "TRIES_BEFORE_GONE", 2)
    for module in (topic_presence, coordinator_requests):
        monkeypatch.setattr(module, "NEW_TOPIC_PATIENCE_MS", 1.0)


def deleted(cluster: StrictCluster, topic: str) -> None:
    cluster.delete_topic(topic)


def recreated(cluster: StrictCluster, topic: str) -> None:
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 2, topic_id=uuid.uuid4())


def recreated_smaller(cluster: StrictCluster, topic: str) -> None:
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 1, topic_id=uuid.uuid4())


class Copy:
    """Topics `orders` and `users`, of which the first goes away."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self.routes = with_users(clusters)
        clusters.write(A, 2)
        clusters.write(B, 2)

    def job(self, **changes: Any) -> KafkaSlotJob:
        settings = {"leaves_out": True, "isolates": True, "routes": self.routes} | changes
        return self.clusters.job({A: 0, B: 0, USERS: 0}, **settings)

    def lose_target(self, change: Change, api: str | None) -> None:
        """Let `copy` go away in front of the first response to `api`; None: before the slot begins.

        Not at once: what is asked meanwhile over another connection is answered before.
        """
        target = self.clusters.target

        def change_late() -> None:
            time.sleep(0.05)
            change(target, "copy")

        if api is None:
            change(target, "copy")
        else:
            target.change(api, after(change_late))

    @property
    def ranges(self) -> tuple[PlannedRange, ...]:
        return planned(A, 2), planned(B, 2), planned(USERS, 3)

    def run_rounds(self, run: Run, expected: dict[SourcePartition, Left]) -> None:
        """Run a slot, and a further round where it hands over before it has all: `users` is copied without `orders`."""
        result = run(self.job(), *self.ranges)
        assert left(result) == expected
        if result.is_partial:
            result = run(self.job(left_out=frozenset({A, B})), *self.ranges)
        assert {source: end for source, end in copied(result).items() if end} == {USERS: 3}
        assert len(self.clusters.committed(result, USERS, "people")) == 1


@pytest.fixture
def copy(clusters: Clusters) -> Copy:
    return Copy(clusters)


def of_orders(side: str, name: str) -> dict[SourcePartition, Left]:
    return dict.fromkeys((A, B), (0, side, name, name != UNKNOWN))


CHANGES = [deleted, recreated, recreated_smaller]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("api", [None, "AddPartitionsToTxn", "Produce"])
def test_a_target_topic_that_goes_away_is_left_out_and_the_other_topic_is_copied(
    copy: Copy, run: Run, change: Change, api: str | None
) -> None:
    copy.lose_target(change, api)
    copy.run_rounds(run, of_orders("target", GONE))
    visible = [
        batch
        for topic_partition, log in copy.clusters.target.logs.items()
        if topic_partition[0] == "copy"
        for batch in log.batches
    ]
    assert all(batch.header.is_transactional for batch in visible), "readers of another topic see nothing of the mirror's"


@pytest.mark.slow
@pytest.mark.parametrize(("change", "name"), [(deleted, UNKNOWN), (recreated, RECREATED), (recreated_smaller, RECREATED)])
@pytest.mark.parametrize("when", ["before", "while read"])
def test_a_source_topic_that_goes_away_is_left_out_and_the_other_topic_is_copied(
    copy: Copy, change: Change, name: str, when: str
) -> None:
    source = copy.clusters.source
    if when == "before":
        change(source, "orders")
    else:
        source.change("Fetch", after(lambda: change(source, "orders")))
    copy.run_rounds(copy.clusters.run, of_orders("source", name))


@pytest.mark.slow
@pytest.mark.parametrize("source_change", CHANGES)
@pytest.mark.parametrize("target_change", CHANGES)
def test_of_a_topic_that_is_gone_on_both_sides_the_target_s_answer_is_reported(
    copy: Copy, source_change: Change, target_change: Change
) -> None:
    source_change(copy.clusters.source, "orders")
    target_change(copy.clusters.target, "copy")
    copy.run_rounds(copy.clusters.run, of_orders("target", GONE))


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("api", [None, "Produce"])
def test_without_isolation_a_target_topic_that_goes_away_ends_the_slot_with_its_name_and_a_remedy(
    copy: Copy, run: Run, change: Change, api: str | None
) -> None:
    copy.lose_target(change, api)
    with pytest.raises(TopicGoneError, match=r"target topic copy \(for orders\) was deleted.*exclude it") as gone:
        run(copy.job(isolates=False), *copy.ranges)
    assert gone.value.topics == ("copy",)


def test_without_isolation_a_source_topic_that_was_created_again_ends_the_slot(copy: Copy) -> None:
    recreated(copy.clusters.source, "orders")
    with pytest.raises(TopicRecreatedError, match="orders"):
        copy.clusters.run(copy.job(isolates=False), *copy.ranges)


@pytest.mark.parametrize("isolates", [True, False])
def test_a_target_topic_that_one_of_two_brokers_does_not_know_yet_is_tried_again_a_moment_later(
    copy: Copy, isolates: bool
) -> None:
    target = copy.clusters.target
    target.start_node(2)
    target.change("Metadata", *[error(3, ("copy", -1))] * 20, node_id=1)
    result = copy.clusters.run(copy.job(isolates=isolates), *copy.ranges)
    assert left(result) == of_orders("target", UNKNOWN)
    assert copied(result) == {USERS: 3}
