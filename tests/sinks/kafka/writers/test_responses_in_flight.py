"""Responses whose acknowledgements are still to come while the next one is read: recorded in order, and accounted for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.fakes.changes import AS_IT_SHOULD, error, held
from tests.sinks.two_strict_clusters import LIMITS, A, B, Clusters, payloads, planned, route_to
from tests.support.deadlines import wait_until
from tests.support.record_batches import batch, record

from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import FAR_RESPONSES, NEAR_RESPONSES
from shallow_mirror.sinks.slots import UNLIMITED_QUARANTINE
from shallow_mirror.types import SegmentKind

SMALL_FETCH = 1 << 15
"""Holds two of the batches that are written here. Two such responses may be in flight before the first acknowledgement."""

VALUE_BYTES = 15_000
ROUTES = {"orders": route_to("copy", replace(LIMITS, max_message_bytes=1 << 20))}


def write_large(clusters: Clusters, count: int) -> list[bytes]:
    """Write so many batches of one record of about 15 kB to A."""
    made = [batch(n, 1, payload=record(0, value=b"%05d" % n + bytes(VALUE_BYTES))) for n in range(count)]
    clusters.source.seed((A.topic, A.partition), *made)
    return made


@pytest.mark.parametrize("in_flight", [NEAR_RESPONSES, FAR_RESPONSES])
def test_the_source_is_read_on_while_the_target_has_not_acknowledged(clusters: Clusters, in_flight: int) -> None:
    written = write_large(clusters, 12)
    acknowledged = threading.Event()
    clusters.target.change("Produce", held(acknowledged))
    job = clusters.job({A: 0}, routes=ROUTES, fetch_bytes=SMALL_FETCH, responses_in_flight=in_flight)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(clusters.run, job, planned(A, 12))
        try:
            # Near, the first response is being written, the second one is read, and the third one is on the wire.
            wait_until(lambda: clusters.source.asked("Fetch") >= in_flight + 2)
            assert not running.done()
        finally:
            acknowledged.set()
        result = running.result(30)
    assert clusters.committed(result, A) == payloads(written)
    assert [(segment.kind, segment.source_start, segment.source_end) for segment in result.segments] == [
        (SegmentKind.DATA, 0, 12)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [NEAR_RESPONSES, FAR_RESPONSES])
@pytest.mark.parametrize("refused", [0, 3, 7])
def test_a_batch_that_is_refused_after_others_were_sent_behind_it_is_quarantined_alone(
    clusters: Clusters, refused: int, in_flight: int
) -> None:
    written = write_large(clusters, 8)
    invalid_timestamp = error(32, ("copy", 0))
    clusters.target.change("Produce", *[AS_IT_SHOULD] * refused, invalid_timestamp)
    positions, committed = {A: 0}, list[bytes]()
    quarantined = list[QuarantinedBatch]()
    for _ in range(10):
        job = clusters.job(
            dict(positions),
            routes=ROUTES,
            fetch_bytes=SMALL_FETCH,
            quarantine=UNLIMITED_QUARANTINE,
            responses_in_flight=in_flight,
        )
        result = clusters.run(job, planned(A, 8))
        quarantined += result.quarantined
        if result.txn is not None:
            committed = clusters.committed(result, A)
        positions[A] = max((segment.source_end for segment in result.segments), default=positions[A])
        if not result.is_partial:
            break
    assert positions[A] == 8
    assert [(each.source_start, each.source_end) for each in quarantined] == [(refused, refused + 1)]
    assert committed == payloads([*written[:refused], *written[refused + 1 :]])


def test_buffers_are_used_again_by_the_next_task_of_a_worker(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_clients, "_buffers", [])
    written = write_large(clusters, 6)
    first = clusters.run(clusters.job({A: 0}, routes=ROUTES, fetch_bytes=SMALL_FETCH), planned(A, 3))
    assert clusters.committed(first, A) == payloads(written[:3])
    kept = list(worker_clients._buffers)
    assert len(kept) == 4
    second = clusters.run(clusters.job({A: 3, B: 0}, routes=ROUTES, fetch_bytes=SMALL_FETCH), planned(A, 6, 3))
    assert clusters.committed(second, A) == payloads(written)
    assert {id(buffer) for buffer in worker_clients._buffers} == {id(buffer) for buffer in kept}


def test_a_buffer_that_is_viewed_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_clients, "_buffers", [])
    first, second = worker_clients.buffers_of_worker(2, 1 << 20)
    view = first.view(100)
    worker_clients.keep_buffers([first, second], 1 << 20)
    assert worker_clients.buffers_of_worker(2, 1 << 20)[0] is second
    view.release()
    assert worker_clients.buffers_of_worker(1, 1 << 20) == (first,)


def test_no_more_buffers_are_kept_than_the_limit_and_none_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_clients, "_buffers", [])
    lent = worker_clients.buffers_of_worker(worker_clients.MOST_BUFFERS + 2, 1 << 20)
    lent[0].view(1 << 19).release()
    worker_clients.keep_buffers(lent, 1 << 16)
    assert len(worker_clients._buffers) == worker_clients.MOST_BUFFERS
    assert lent[0] not in worker_clients._buffers
