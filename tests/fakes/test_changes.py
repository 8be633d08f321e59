"""A change of a response does what it says; what no broker could read fails the test; nothing outlives the cluster."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from tests.fakes.changes import (
    AS_IT_SHOULD,
    Change,
    after,
    cut,
    dropped_after,
    dropped_before,
    error,
    garbage,
    held,
    oversized,
    throttled,
    truncated,
    wrong_correlation_id,
)
from tests.fakes.kafka_codec import API_KEYS, framed, request_type
from tests.fakes.raw_client import RawClient
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch


@pytest.fixture
def cluster() -> Iterator[StrictCluster]:
    with StrictCluster() as made:
        made.create_topic("t")
        yield made


def second_produce(cluster: StrictCluster, change: Change) -> int:
    cluster.change("Produce", AS_IT_SHOULD, change)
    with RawClient(cluster.bootstrap) as client:
        assert client.produce("t", batch(0, 1)).error_code == 0
        return int(client.produce("t", batch(0, 1)).error_code)


@pytest.mark.parametrize(
    ("change", "code", "appended"),
    [
        (AS_IT_SHOULD, 0, 2),
        (error(7), 7, 1),
        (error(7, is_performed=True), 7, 2),
        (error(7, ("t", 0)), 7, 1),
        (error(7, ("t", 1)), 0, 2),
        (throttled(10), 0, 2),
        (after(lambda: None), 0, 2),
    ],
)
def test_the_nth_response_is_changed_and_the_effect_happens_or_not(
    cluster: StrictCluster, change: Change, code: int, appended: int
) -> None:
    assert second_produce(cluster, change) == code
    assert cluster.log("t").end_offset == appended


@pytest.mark.parametrize(
    ("change", "appended"),
    [
        (dropped_before(), 1),
        (dropped_after(), 2),
        (cut(0), 2),
        (cut(10), 2),
        (garbage(), 2),
        (truncated(4), 2),
        (wrong_correlation_id(), 2),
    ],
)
def test_a_response_that_is_lost_or_broken_cannot_be_read(cluster: StrictCluster, change: Change, appended: int) -> None:
    with pytest.raises((ConnectionError, AssertionError, ValueError, IndexError, TypeError, struct.error)):
        second_produce(cluster, change)
    assert cluster.log("t").end_offset == appended


def test_an_oversized_answer_announces_more_than_comes(cluster: StrictCluster) -> None:
    cluster.change("ApiVersions", oversized(1_000))
    with RawClient(cluster.bootstrap) as client:
        client.send("ApiVersions", client_software_name="raw", client_software_version="1")
        assert client._exactly(4) == (1_000).to_bytes(4, "big")


def test_a_held_answer_comes_when_it_is_let_go_and_holds_up_no_end(cluster: StrictCluster) -> None:
    let_go, never = threading.Event(), threading.Event()
    cluster.change("ApiVersions", held(let_go), held(never))
    with RawClient(cluster.bootstrap) as client:
        fields = {"client_software_name": "raw", "client_software_version": "1"}
        sent = client.send("ApiVersions", **fields)
        let_go.set()
        assert client.receive("ApiVersions", sent).error_code == 0
        client.send("ApiVersions", **fields)
        cluster.stop()


def test_a_change_of_one_node_leaves_the_others_alone() -> None:
    with StrictCluster(nodes=2) as cluster:
        cluster.create_topic("t", 2)
        cluster.change("ListOffsets", error(56), node_id=2)
        with RawClient(cluster.bootstrap) as client:
            assert client.list_offsets("t", -1).error_code == 0
        assert cluster._changes["ListOffsets", 2]


def frame(api: str, version: int, body: bytes) -> bytes:
    api_key: int = API_KEYS[api]
    return api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + (1).to_bytes(4, "big") + body


def end_txn() -> bytes:
    request = request_type("EndTxn")(transactional_id="x", producer_id=1, producer_epoch=0, committed=True)
    request.with_header(1, "me")
    return bytes(request.encode(header=True))


received: list[bytes] = []


def exchange(sent: bytes) -> bytes:
    """All that comes back until the broker closes the connection."""
    with StrictCluster() as cluster, socket.create_connection(cluster.nodes[1], timeout=10) as peer:
        peer.sendall(framed(sent))
        with peer.makefile("rb") as response:
            received.append(response.read())
    return received[-1]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "frame of 0 bytes"),
        (frame("Fetch", 11, b""), "Fetch version 11"),
        (b"\x7f\x00" + frame("Fetch", 12, b"")[2:], "api key 32512"),
        (end_txn()[:-1], "EndTxn"),
        (end_txn() + b"\x00", "EndTxn is not the schema's encoding"),
    ],
)
def test_what_no_broker_can_read_fails_the_test(sent: bytes, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        exchange(sent)
    assert received.pop() == b""


def test_an_unknown_version_of_api_versions_is_answered_with_35_in_version_0() -> None:
    with pytest.raises(AssertionError, match="ApiVersions version 9"):
        exchange(frame("ApiVersions", 9, b""))
    assert received.pop() == framed((1).to_bytes(4, "big") + b"\x00\x23" + bytes(4))


def fail_inside(clients: list[RawClient]) -> None:
    with StrictCluster(nodes=2) as cluster:
        clients += [RawClient(cluster.bootstrap) for _ in range(3)]
        cluster.stop_node(2)
        cluster.start_node(2)
        raise ZeroDivisionError


def test_no_thread_and_no_listener_is_left_behind_by_the_cluster_also_after_a_failure() -> None:
    before = set(threading.enumerate())
    clients: list[RawClient] = []
    with pytest.raises(ZeroDivisionError):
        fail_inside(clients)
    assert not set(threading.enumerate()) - before
    for client in clients:
        with client, pytest.raises(ConnectionError):
            client.metadata("t")
