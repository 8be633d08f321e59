"""The first question to a cluster: its brokers, or soon one line that says which cluster does not answer, and what to look at."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster
from tests.security.token_endpoint import TokenEndpoint

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster.connectivity import REACH_MS, reach
from shallow_mirror.errors import BrokerTooOldError, RetriableError

OAUTH = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER"}


def cluster_at(bootstrap: str, clock: SleepingClock, **properties: str) -> Cluster:
    config = ClientConfig.from_properties({"bootstrap.servers": bootstrap} | properties, allows_literal_secrets=True)
    return Cluster(config, clock=clock, sleep=clock.sleep)


def with_sasl(response: Any) -> None:
    response.error_code = 0


def unreached(properties: dict[str, str]) -> str:
    """Return the error of a cluster whose brokers run and ask for a token."""
    clock = SleepingClock()
    with StrictCluster() as fake:
        fake.alter_responses("SaslHandshake", with_sasl)
        with (
            closing(cluster_at(fake.bootstrap, clock, **OAUTH, **properties)) as cluster,
            pytest.raises(RetriableError) as raised,
        ):
            reach(cluster, "source cluster east", clock.deadline())
        assert fake.asked("SaslHandshake") == fake.asked("ApiVersions") > 1  # and no listener was probed
    return str(raised.value)


def asking_for_a_token(_config: str) -> tuple[str, float]:
    raise ConnectionError


def test_a_cluster_that_answers_says_its_id_and_brokers() -> None:
    clock = SleepingClock()
    with StrictCluster(nodes=2, cluster_id="east-id") as fake, closing(cluster_at(fake.bootstrap, clock)) as cluster:
        actual = reach(cluster, "source cluster east", clock.deadline())
    assert (actual.cluster_id, sorted(actual.brokers)) == ("east-id", [1, 2])


def test_a_cluster_that_does_not_answer_is_named_with_its_remedy_long_before_patience_is_over() -> None:
    clock = SleepingClock()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
        began = clock()
        with closing(cluster_at(nowhere, clock)) as cluster, pytest.raises(RetriableError) as raised:
            reach(cluster, "source cluster east", clock.deadline(10 * REACH_MS))
    assert clock() - began == pytest.approx(REACH_MS / 1000)
    assert str(raised.value).startswith("NETWORK_EXCEPTION: the source cluster east does not answer: gave up asking for metadata")
    assert f"cannot connect to {nowhere}" in str(raised.value)
    assert "check its bootstrap.servers" in str(raised.value)


def test_a_broker_that_is_too_old_is_named_with_its_cluster() -> None:
    clock = SleepingClock()
    with StrictCluster() as fake, closing(cluster_at(fake.bootstrap, clock)) as cluster:
        fake.not_offered = frozenset({"EndTxn"})
        with pytest.raises(BrokerTooOldError, match=r"^source cluster east: broker 127\.0\.0\.1:\d+ is too old: .* no EndTxn"):
            reach(cluster, "source cluster east", clock.deadline())


@pytest.mark.slow
def test_a_token_endpoint_that_is_unreachable_is_named_and_not_the_brokers(tmp_path: Path) -> None:
    with TokenEndpoint(tmp_path, {}) as endpoint:
        url = endpoint.url
    properties = {"method": "oidc", "token.endpoint.url": url, "client.id": "me", "client.secret": "s"}
    output = unreached({f"sasl.oauthbearer.{name}": value for name, value in properties.items()})
    assert output.startswith(
        "TOKEN_ENDPOINT_UNREACHABLE: the source cluster east requires a token, and none could be obtained: gave up asking for metadata: "
        f"cannot reach the token endpoint {url}: "
    )
    assert "check sasl.oauthbearer.token.endpoint.url, and whether that endpoint runs" in output
    assert "bootstrap.servers" not in output


def test_a_callable_that_gets_no_token_is_named_and_not_the_brokers() -> None:
    output = unreached({"oauth_cb": f"{__name__}:asking_for_a_token"})
    assert output.startswith("OAUTH_CB_FAILED: the source cluster east requires a token, and none could be obtained: ")
    assert (
        f"oauth_cb: {__name__}:asking_for_a_token raised ConnectionError: check the service that oauth_cb requests tokens from"
        in output
    )
    assert "bootstrap.servers" not in output
