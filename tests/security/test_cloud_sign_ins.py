"""Sign-ins with the tokens of clouds: through a gate that checks them as MSK and Google do, and from Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.security.cloud_sign_ins import ABSENT, GATED, CloudSignIns
from tests.security.fake_clouds import name_google_metadata
from tests.security.secured_cluster import CLIENT_ID, CLIENT_SECRET, SecuredCluster
from tests.security.token_endpoint import TokenEndpoint
from tests.support import mirror_runs as runs
from tests.support.deadlines import deadline

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.errors import AuthenticationError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No credentials of this machine."""
    for name in ABSENT:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def clouds(environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CloudSignIns]:
    with (
        TokenEndpoint(tmp_path, {CLIENT_ID: CLIENT_SECRET}) as tokens,
        CloudSignIns(tmp_path / "clouds", tokens, CLIENT_ID) as clouds,
    ):
        for name, value in clouds.environment.items():
            environment.setenv(name, value)
        name_google_metadata(clouds.environment["GCE_METADATA_HOST"], environment)
        yield clouds


@pytest.mark.slow
@pytest.mark.parametrize("method", GATED)
def test_a_broker_that_checks_tokens_as_the_cloud_does_lets_the_client_in(clouds: CloudSignIns, method: str) -> None:
    gate = clouds.gate(method)
    with StrictCluster() as broker:
        gate.connect(broker.bootstrap)
        (node_id,) = broker.nodes
        broker.nodes[node_id] = ("127.0.0.1", gate.port)
        properties = {"bootstrap.servers": gate.address} | clouds.properties(method)
        with closing(Cluster(ClientConfig.from_properties(properties))) as cluster:
            assert cluster.cluster_id(deadline()) == "fake-cluster"
    assert gate.accepted
    assert gate.problems == []


@pytest.mark.slow
def test_a_token_of_another_key_is_refused_with_what_to_check(clouds: CloudSignIns, environment: pytest.MonkeyPatch) -> None:
    gate = clouds.gate("aws_msk_iam")
    with StrictCluster() as broker:
        gate.connect(broker.bootstrap)
        # Signed with the keys of the machine, not of the role.
        properties = {"bootstrap.servers": gate.address} | clouds.properties("aws_msk_iam")
        properties["sasl.oauthbearer.config"] = "region=eu-west-1"
        with closing(Cluster(ClientConfig.from_properties(properties))) as cluster, pytest.raises(AuthenticationError) as caught:
            cluster.cluster_id(deadline())
    assert "refused the token (OAUTHBEARER): Authentication failed: check region and role" in str(caught.value)
    assert gate.problems == ["signature"]
    assert gate.accepted == []


def mirror(folder: Path, sides: dict[str, dict[str, Any]], topic: str) -> None:
    """Run a mirror of a topic with `--available-now`, in a process of its own."""
    topics = {"target_name": "{source}.{topic}"}
    conf = runs.conf_file(folder, "", "", [topic], **sides, topics=topics, write={"slots": 1})
    with runs.command(folder, conf, "--available-now") as process:
        assert process.wait(2 * runs.PATIENCE_S) == 0, runs.log_text(folder)


@pytest.mark.brokers
@pytest.mark.spark
def test_planner_and_tasks_of_spark_get_their_tokens_by_themselves(
    secured: SecuredCluster, environment: pytest.MonkeyPatch, tmp_path: Path, topic_name: str
) -> None:
    runs.create_topic(secured.bootstrap, topic_name)
    runs.write(secured.bootstrap, topic_name, ["a", "b"])
    with CloudSignIns(tmp_path / "clouds", secured.tokens, CLIENT_ID) as clouds:
        for name, value in clouds.environment.items():
            environment.setenv(name, value)
        address = {"bootstrap.servers": secured.address_of("OAUTH")}
        sides = {
            "source": {"alias": "east", "client": address | clouds.properties("azure")},
            "target": {"alias": "west", "client": address | clouds.properties("databricks")},
        }
        mirror(tmp_path, sides, topic_name)
        # The driver, and a worker of Spark.
        assert len(clouds.databricks_processes) >= 2
    assert runs.read_values(secured.bootstrap, f"east.{topic_name}") == ["a", "b"]


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
def test_a_mirror_from_msk_to_google_signs_in_at_brokers_that_check_its_tokens(
    clouds: CloudSignIns, no_child_process_is_left: None, tmp_path: Path, topic_name: str
) -> None:
    gates = {method: clouds.gate(method) for method in GATED}
    listeners = [Listener(method.upper(), "PLAINTEXT", advertised_port=gate.port) for method, gate in gates.items()]
    with LocalKafka(tmp_path / "node", listeners=listeners) as node:
        for method, gate in gates.items():
            gate.connect(node.address_of(method.upper()))
        runs.create_topic(node.bootstrap, topic_name)
        runs.write(node.bootstrap, topic_name, ["a", "b"])
        clients = [{"bootstrap.servers": gates[method].address} | clouds.properties(method) for method in GATED]
        sides = {side: {"alias": side, "client": client} for side, client in zip(("source", "target"), clients, strict=True)}
        mirror(tmp_path, sides, topic_name)
        assert runs.read_values(node.bootstrap, f"source.{topic_name}") == ["a", "b"]
    for gate in gates.values():
        assert gate.problems == []
        # Tokens of several processes: each has its own.
        assert len(set(gate.accepted)) >= 2
