"""A slot with a topic of preserved offsets and one of translated ones: an error of one leaves nothing behind for the other."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from tests.fakes.changes import AS_IT_SHOULD, error
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.two_strict_clusters import LIMITS, A, Clusters, client_of, planned
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks import RoutedTopic
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.types import SegmentKind, SourcePartition


def ids_of(cluster: StrictCluster, *names: str) -> dict[str, str]:
    client = Cluster(client_of(cluster))
    try:
        listed = client.metadata(list(names), Deadline.after_ms(5_000, time.monotonic)).topics
        return {name: topic.topic_id for name, topic in listed.items()}
    finally:
        client.close()


@pytest.mark.parametrize("is_outside", [False, True], ids=["in a response", "outside of the pipelines"])
def test_a_next_try_does_not_read_responses_to_the_one_before(clusters: Clusters, is_outside: bool) -> None:
    clusters.write(A, 2, 3)
    clusters.source.create_topic("others")
    clusters.target.create_topic("copy-of-others")
    clusters.source.seed(("others", 0), batch(0, 4))
    ids = ids_of(clusters.target, "copy", "copy-of-others")
    others = SourcePartition("others", ids_of(clusters.source, "others")["others"], 0)
    job = clusters.job(
        {A: 0, others: 0},
        routes={
            "orders": RoutedTopic(target_topic="copy", target_topic_id=ids["copy"], limits=LIMITS, is_preserved=True),
            "others": RoutedTopic(target_topic="copy-of-others", target_topic_id=ids["copy-of-others"], limits=LIMITS),
        },
        shared_producers={A: 77},
        guard_times=GuardTimes(expiration_ms=86_400_000, quiet_ms=900_000),
    )
    failures = [RetriableError("NETWORK_EXCEPTION", "lost")] if is_outside else []

    def fail_once(point: str) -> None:
        if point == "task.produced" and failures:
            raise failures.pop()

    job = replace(job, observer=fail_once)
    # The first batch of a log is sent alone. The next one fails, with the records of the other topic on their way.
    clusters.target.change("Produce", AS_IT_SHOULD, AS_IT_SHOULD if is_outside else error(6))
    result = clusters.run(job, planned(A, 5), planned(others, 4))
    assert result.retried
    log = clusters.target.log("copy-of-others", 0)
    assert result.txn is not None
    written = [each.header.base_offset for each in log.batches if each.header.producer_epoch == result.txn.producer_epoch]
    rows = [segment for segment in result.segments if segment.source == others and segment.kind is SegmentKind.DATA]
    assert [row.target_start for row in rows] == written
    assert clusters.target.log("copy", 0).end_offset == 5
