"""The proxy harms the request it is told to, in the way it is told to, and nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.fakes.raw_client import RawClient
from tests.fakes.strict_broker import StrictCluster
from tests.faults.proxy import Fault, FaultPlan, Harm, HeldPort, Moment, Proxy

from shallow_mirror.local_kafka.cluster import LocalKafkaCluster


@dataclass(frozen=True, slots=True)
class Way:
    """From a client through the proxy to a strict fake broker."""

    broker: StrictCluster
    proxy: Proxy
    plan: FaultPlan

    def client(self) -> RawClient:
        return RawClient(self.proxy.address)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < give_up_at
            time.sleep(0.01)


@pytest.fixture
def way() -> Iterator[Way]:
    plan = FaultPlan()
    with StrictCluster() as broker:
        broker.create_topic("t", 1)
        broker_port = int(broker.bootstrap.rsplit(":", 1)[1])
        with HeldPort() as port, Proxy(port, broker_port, plan) as proxy:
            yield Way(broker, proxy, plan)


def find(client: RawClient) -> int:
    return int(client.ask("FindCoordinator", key="k", key_type=1).error_code)


def test_what_is_not_harmed_passes_in_both_directions(way: Way) -> None:
    with way.client() as client:
        sent = [client.send("FindCoordinator", key="k", key_type=1) for _ in range(3)]
        assert [client.receive("FindCoordinator", correlation_id).error_code for correlation_id in sent] == [0, 0, 0]
        assert client.metadata("t").topics[0].name == "t"
    assert way.plan.requests == {"FindCoordinator": 3, "Metadata": 1}


@pytest.mark.parametrize("harm", [Harm.CUT, Harm.RESET])
@pytest.mark.parametrize(("moment", "applied"), [(Moment.ARRIVING, 0), (Moment.APPLIED, 1)])
def test_a_connection_ends_before_or_after_the_request_is_applied(way: Way, harm: Harm, moment: Moment, applied: int) -> None:
    (armed,) = way.plan.arm(Fault(api="FindCoordinator", harm=harm, moment=moment))
    with way.client() as client:
        client.metadata("t")
        assert not armed.has_fired
        with pytest.raises(ConnectionError):
            find(client)
    assert armed.wait(0)
    assert way.broker.asked("FindCoordinator") == applied
    with way.client() as client:
        assert find(client) == 0


def test_the_nth_request_is_counted_over_all_connections_from_the_arming_on(way: Way) -> None:
    with way.client() as first, way.client() as second:
        find(first)
        way.plan.arm(Fault(api="FindCoordinator", harm=Harm.CUT, moment=Moment.ARRIVING, nth=3))
        find(first)
        find(second)
        with pytest.raises(ConnectionError):
            find(first)
        find(second)


def test_a_fault_that_was_disarmed_does_not_happen(way: Way) -> None:
    (armed,) = way.plan.arm(Fault(api="FindCoordinator", harm=Harm.CUT, moment=Moment.ARRIVING))
    way.plan.disarm()
    with way.client() as client:
        assert find(client) == 0
    assert not armed.has_fired


@pytest.mark.slow
def test_a_delayed_request_is_applied_although_its_sender_has_gone(way: Way) -> None:
    (armed,) = way.plan.arm(Fault(api="FindCoordinator", harm=Harm.DELAY, moment=Moment.ARRIVING, delay_s=0.3))
    with way.client() as client:
        client.send("FindCoordinator", key="k", key_type=1)
        assert armed.wait(20)
    assert way.broker.asked("FindCoordinator") == 0
    way.wait_for(lambda: way.broker.asked("FindCoordinator") == 1)


@pytest.mark.slow
def test_a_delayed_reply_comes_in_the_end(way: Way) -> None:
    way.plan.arm(Fault(api="FindCoordinator", harm=Harm.DELAY, moment=Moment.APPLIED, delay_s=0.3))
    with way.client() as client:
        assert find(client) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "applied"), [(Moment.ARRIVING, 0), (Moment.APPLIED, 1)])
def test_a_half_open_connection_is_not_reported(way: Way, moment: Moment, applied: int) -> None:
    way.plan.arm(Fault(api="FindCoordinator", harm=Harm.HALF_OPEN, moment=moment))
    with way.client() as client, way.client() as other:
        client._socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            find(client)
        assert find(other) == 0
        client.send("Metadata", topics=None)
        with pytest.raises(TimeoutError):
            client._exactly(4)
    assert way.broker.asked("FindCoordinator") == applied + 1


def test_a_proxy_that_refuses_cuts_what_there_is_until_it_accepts_again(way: Way) -> None:
    with way.client() as client:
        find(client)
        way.proxy.refuse()
        with pytest.raises(ConnectionError):
            find(client)
        with pytest.raises(ConnectionRefusedError):
            way.client()
    way.proxy.accept()
    with way.client() as client:
        assert find(client) == 0


@pytest.mark.slow
def test_what_is_stalled_passes_once_it_flows_again(way: Way) -> None:
    with way.client() as client:
        find(client)
        way.proxy.stall()
        asked = client.send("FindCoordinator", key="k", key_type=1)
        client._socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.receive("FindCoordinator", asked)
        way.proxy.flow()
        client._socket.settimeout(20)
        assert client.receive("FindCoordinator", asked).error_code == 0


def test_the_end_of_the_broker_is_the_end_of_the_clients_connection(way: Way) -> None:
    with way.client() as client:
        find(client)
        way.broker.stop_node(1)
        with pytest.raises(ConnectionError):
            find(client)
    with way.client() as client, pytest.raises(ConnectionError):
        find(client)


def test_nothing_listens_any_more_at_the_end() -> None:
    with HeldPort() as port, HeldPort() as nobody:
        with Proxy(port, nobody.number, FaultPlan()):
            socket.create_connection(("127.0.0.1", port.number), timeout=20).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port.number), timeout=20)


def test_a_port_is_held_also_while_nothing_listens_on_it() -> None:
    with HeldPort() as port:
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", port.number))
            with port.listen():
                socket.create_connection(("127.0.0.1", port.number), timeout=20).close()


@pytest.mark.brokers
def test_a_stock_client_of_a_real_broker_comes_by_the_proxy_for_everything(tmp_path: Path) -> None:
    plan, creating = FaultPlan(), {"auto.create.topics.enable": "true"}
    with HeldPort() as port, LocalKafkaCluster(tmp_path, 1, proxies=[port.number], properties=creating) as cluster:
        with Proxy(port, cluster.proxied_ports[0], plan) as proxy:
            producer = Producer({"bootstrap.servers": proxy.address, "log_level": 0, "enable.idempotence": True})
            (armed,) = plan.arm(Fault(api="Produce", harm=Harm.CUT, moment=Moment.APPLIED))
            producer.produce("t", b"v")
            assert producer.flush(60) == 0
            assert armed.has_fired
            assert plan.requests["Produce"] == 2
