"""Every security protocol on a real broker: what lets a client in, and the sentence when it stays outside."""

from __future__ import annotations

import re
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.security import secured_cluster as users
from tests.security.fake_clouds import AzureMetadata
from tests.security.secured_cluster import SESSION_MS, Right, SecuredCluster
from tests.security.token_endpoint import JWT_BEARER, TokenEndpoint
from tests.support import mirror_runs as runs
from tests.support.deadlines import deadline

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec, ensure_topics
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.net import ReceiveBuffer
from shallow_mirror.broker.net.requests import request_class
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync import GroupSyncer
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.sinks.kafka import id_count
from shallow_mirror.streaming.runs.permissions import require_acls
from shallow_mirror.types import TopicPartition

pytestmark = pytest.mark.brokers


def client(properties: dict[str, Any]) -> ClientConfig:
    return ClientConfig.from_properties(properties, allows_literal_secrets=True)


def create_topic(properties: dict[str, Any], topic: str) -> None:
    with closing(Cluster(client(properties))) as cluster:
        ensure_topics(cluster, [TopicSpec(topic, 1, None, {})], deadline(30_000))


def cluster_id(properties: dict[str, Any]) -> str:
    cluster = Cluster(client(properties))
    try:
        return cluster.cluster_id(deadline())
    finally:
        cluster.close()


def refusal(properties: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        cluster_id(properties)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "SCRAM", "SHORT", "PLAIN", "OAUTH"])
def test_a_client_with_the_right_properties_is_let_in(secured: SecuredCluster, listener: str, topic_name: str) -> None:
    properties = secured.properties(listener)
    assert cluster_id(properties) == secured.node.cluster_id
    create_topic(properties, topic_name)


@pytest.mark.parametrize(
    ("listener", "changes", "message"),
    [
        ("SCRAM", {"sasl.password": "wrong"}, "refused user mirror,=user (SCRAM-SHA-512)"),
        ("SCRAM", {"sasl.username": "nobody"}, "refused user nobody (SCRAM-SHA-512)"),
        ("PLAIN", {"sasl.password": "wrong"}, "correct sasl.username and sasl.password"),
        ("PLAIN", {"sasl.mechanism": "SCRAM-SHA-256"}, "does not offer SCRAM-SHA-256 at this listener; it offers PLAIN"),
        ("SCRAM", {"sasl.mechanism": "PLAIN"}, "it offers SCRAM-SHA-256, SCRAM-SHA-512"),
        ("TLS", {"ssl.ca.location": "{stranger.identity.certificate_file}"}, "set ssl.ca.location"),
        ("TLS", {"ssl.ca.location": None}, "a CA that is not trusted here"),
        ("EXPIRED", {}, "has expired: renew it on the broker"),
        ("ELSEWHERE", {}, "is for other hosts"),
        ("MUTUAL", {"ssl.certificate.location": None, "ssl.key.location": None}, "asks for"),
        (
            "MUTUAL",
            {"ssl.certificate.location": "{strange_client.certificate_file}", "ssl.key.location": "{strange_client.key_file}"},
            "rejected the client certificate",
        ),
        (
            "MUTUAL",
            {"ssl.certificate.location": "{expired_client.certificate_file}", "ssl.key.location": "{expired_client.key_file}"},
            "rejected the client certificate",
        ),
        ("OAUTH", {"sasl.oauthbearer.client.secret": "wrong"}, "returned no token (401 invalid_client)"),
        ("OAUTH", {"sasl.oauthbearer.token.endpoint.url": "{tokens.url}/nowhere"}, "returned no token (404"),
    ],
)
def test_what_does_not_fit_is_reported_with_what_to_change(
    secured: SecuredCluster, listener: str, changes: dict[str, Any], message: str
) -> None:
    filled = {name: value if value is None else value.format(**vars(secured)) for name, value in changes.items()}
    problem = refusal(secured.properties(listener, **filled))
    assert message in problem
    assert "wrong" not in problem


@pytest.mark.parametrize(
    ("listener", "protocol", "message"),
    [
        ("PLAINTEXT", "ssl", "speaks neither TLS nor SASL on this port"),
        ("PLAINTEXT", "sasl_plaintext", "uses no SASL at this listener: set security.protocol: plaintext"),
        ("PLAINTEXT", "sasl_ssl", "set security.protocol: plaintext"),
        ("TLS", "plaintext", "speaks TLS without SASL on this port, not plaintext: set security.protocol: ssl"),
        ("TLS", "sasl_plaintext", "set security.protocol: ssl"),
        ("TLS", "sasl_ssl", "uses no SASL at this listener: set security.protocol: ssl"),
        ("MUTUAL", "plaintext", "speaks TLS on this port, not plaintext: set security.protocol: ssl"),
        ("SCRAM", "plaintext", "speaks TLS and SASL on this port"),
        ("SCRAM", "ssl", "speaks TLS and SASL on this port, not ssl: set security.protocol: sasl_ssl"),
        ("SCRAM", "sasl_plaintext", "set security.protocol: sasl_ssl"),
        ("PLAIN", "plaintext", "speaks SASL without TLS on this port, not plaintext"),
        ("PLAIN", "ssl", "set security.protocol: sasl_plaintext"),
        ("PLAIN", "sasl_ssl", "set security.protocol: sasl_plaintext"),
    ],
)
def test_a_listener_of_another_protocol_is_named(secured: SecuredCluster, listener: str, protocol: str, message: str) -> None:
    properties = {
        "bootstrap.servers": secured.bootstrap if listener == "PLAINTEXT" else secured.address_of(listener),
        "security.protocol": protocol,
    }
    if protocol.endswith("ssl"):
        properties["ssl.ca.location"] = str(secured.authority.identity.certificate_file)
    if protocol.startswith("sasl"):
        properties |= {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    assert message in refusal(properties)


def test_a_connection_survives_its_sessions_with_requests_in_flight(secured: SecuredCluster) -> None:
    cluster = Cluster(client(secured.properties("SHORT")))
    connection = cluster.connection(secured.node.node_id, "test", deadline())
    request_type, began, sent = request_class("Metadata"), time.monotonic(), []

    def send() -> None:
        request = request_type(topics=[], allow_auto_topic_creation=False)
        sent.append(connection.next_correlation_id())
        request.with_header(sent[-1], "test")
        connection.send(sent[-1], [bytes(request.encode(framed=True, header=True))], deadline())

    for _ in range(3):
        send()
    buffer = ReceiveBuffer(16, 1 << 20)
    while time.monotonic() - began < SESSION_MS * 1.7 / 1000:
        send()
        assert connection.outstanding == 4
        frame = connection.receive(deadline(), buffer)
        assert int.from_bytes(frame[:4], "big") == sent.pop(0)
        time.sleep(0.01)
    assert cluster.connection(secured.node.node_id, "test", deadline()) is connection
    cluster.close()


def test_a_password_that_was_changed_ends_a_connection_at_its_next_session(
    secured: SecuredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTATED", users.PASSWORD)
    cluster = Cluster(client(secured.properties("SHORT", **{"sasl.password": "${env:ROTATED}"})))
    assert cluster.cluster_id(deadline()) == secured.node.cluster_id
    monkeypatch.setenv("ROTATED", "wrong")
    time.sleep(SESSION_MS / 1000)
    with pytest.raises(ConfigError, match="refused user"):
        cluster.cluster_id(deadline())
    cluster.close()


def test_a_token_of_a_callable_is_taken_and_one_of_another_audience_or_issuer_refused(
    secured: SecuredCluster, topic_name: str
) -> None:
    kept = {name: value for name, value in secured.properties("OAUTH").items() if not name.startswith("sasl.oauthbearer")}
    properties = kept | {"oauth_cb": f"{__name__}:token_of_test", "sasl.oauthbearer.config": users.CLIENT_ID}
    _endpoints[:] = [secured.tokens]
    assert cluster_id(properties) == secured.node.cluster_id
    create_topic(properties, topic_name)
    for other in ("token_for_others", "token_by_others"):
        assert "refused the token (OAUTHBEARER)" in refusal(properties | {"oauth_cb": f"{__name__}:{other}"})


_endpoints: list[TokenEndpoint] = []


def token_of_test(config: str) -> tuple[str, float]:
    return _endpoints[0].token(config), time.time() + 600


def token_for_others(config: str) -> tuple[str, float]:
    return _endpoints[0].token(config, aud="others"), time.time() + 600


def token_by_others(config: str) -> tuple[str, float]:
    return _endpoints[0].token(config, iss="https://others.example.org"), time.time() + 600


_ADVICE = re.compile(r"grant (?P<operation>\w+) on (?P<resource>topic|group|transactional id) (?P<name>\S+)$")


def advised(error: ConfigError) -> list[Right]:
    rights = []
    for problem in error.problems:
        match = _ADVICE.search(problem)
        assert match is not None, problem
        operation = re.sub(r"(?<!^)(?=[A-Z])", "_", match["operation"]).upper()
        rights.append(Right(operation, match["resource"].replace(" ", "_").upper(), match["name"]))
    return rights


@pytest.mark.long
@pytest.mark.spark
def test_who_grants_what_each_error_names_ends_with_a_mirror_and_the_rights_of_the_docs(
    secured: SecuredCluster, topic_name: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOR_PASSWORD", users.POOR_PASSWORD)
    poor = secured.properties("SCRAM", **{"sasl.username": users.POOR_USER, "sasl.password": "${env:POOR_PASSWORD}"})
    runs.create_topic(secured.bootstrap, topic_name)
    runs.write(secured.bootstrap, topic_name, ["a", "b"])
    clients = {side: {"alias": alias, "client": poor} for side, alias in (("source", "east"), ("target", "west"))}
    settings = runs.config(
        tmp_path, "", "", [topic_name], **clients, topics={"target_name": "{source}.{topic}"}, write={"slots": 1}
    )
    source, target = topic_name, f"east.{topic_name}"
    transactional_ids = [f"{settings.mirror}-{number}" for number in range(id_count(settings.write.slots))]
    granted: list[Right] = []
    for _ in range(20):
        try:
            runs.catch_up(settings, spark)
            break
        except ConfigError as error:
            granted += advised(error)
            secured.grant(*advised(error))
            time.sleep(0.2)  # the broker's authorizer hears of it a moment later
    assert runs.read_values(secured.bootstrap, target) == ["a", "b"]
    assert {(acl.operation, acl.resource, acl.name) for acl in granted} == {
        *(("WRITE", "TRANSACTIONAL_ID", each) for each in (*transactional_ids, f"{settings.mirror}-run")),
        *(("READ", "GROUP", each) for each in transactional_ids),
        ("READ", "TOPIC", source),
        ("DESCRIBE_CONFIGS", "TOPIC", source),
        ("CREATE", "TOPIC", target),
        ("DESCRIBE_CONFIGS", "TOPIC", target),
        ("WRITE", "TOPIC", target),
        ("READ", "TOPIC", target),
    }
    with closing(GroupClient(ClientConfig.from_properties({"bootstrap.servers": secured.bootstrap}), "source")) as everything:
        assert everything.commit("app", {TopicPartition(topic_name, 0): (1, "")}) == {}
        assert not everything.may_hide_groups()
    hidden = sync_groups(settings, is_applied=True)
    assert (hidden.groups, hidden.may_hide_groups, hidden.is_done) == ((), True, False)
    secured.grant(Right("READ", "GROUP", "app"))
    time.sleep(0.2)
    shown = sync_groups(settings, is_applied=True)
    assert ([group.name for group in shown.groups], shown.is_done) == (["app"], True)


def test_the_log_of_the_groups_is_followed_once_it_may_be_read_and_polled_before(
    secured: SecuredCluster, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOR_PASSWORD", users.POOR_PASSWORD)
    poor = secured.properties("SCRAM", **{"sasl.username": users.POOR_USER, "sasl.password": "${env:POOR_PASSWORD}"})
    runs.create_topic(secured.bootstrap, topic_name)
    sides = {
        "source": {"alias": "east", "client": poor},
        "target": {"alias": "west", "client": {"bootstrap.servers": secured.bootstrap}},
    }
    topics = {"target_name": "{source}.{topic}"}
    settings = runs.config(tmp_path, "", "", [topic_name], **sides, topics=topics, groups={"sync": "30 seconds"})
    with closing(GroupClient(ClientConfig.from_properties({"bootstrap.servers": secured.bootstrap}), "everything")) as everything:
        assert everything.commit(topic_name, {TopicPartition(topic_name, 0): (0, "")}) == {}
        cluster_id = everything.cluster_id()
    secured.grant(Right("READ", "GROUP", topic_name), Right("READ", "TOPIC", topic_name))
    run = RunIdentity(run_id="r", host="here", pid=7, started_at_ms=1_000)
    owner = LedgerOwner.take_over(
        settings.tables,
        name=settings.mirror,
        source_cluster_id=cluster_id,
        target_cluster_id=cluster_id,
        run=run,
        now_ms=lambda: 1_000,
    )
    owner.settle()
    storage, now = TableStorage(settings.tables), datetime(2026, 5, 1, tzinfo=UTC)
    with closing(GroupSyncer(settings, storage, storage.best_effort_tables())) as syncer:
        for granted in ("DESCRIBE", "READ"):
            done = syncer.run_pass(now)
            assert (done.is_followed, done.partition_count) == (False, 1)
            assert "TOPIC_AUTHORIZATION_FAILED" in str(done.not_followed)
            assert "grant Read on topic __consumer_offsets" in str(done.not_followed)
            secured.grant(Right(granted, "TOPIC", "__consumer_offsets"))
            time.sleep(0.2)  # the broker's authorizer hears of it a moment later
            if granted == "DESCRIBE":
                required = settings.groups.model_copy(update={"follow": "required"})
                missing = (
                    r"groups\.follow is required: source topic __consumer_offsets: .*: grant Read on topic __consumer_offsets"
                )
                with closing(Cluster(settings.source.client)) as source, closing(Cluster(settings.target.client)) as target:
                    with pytest.raises(ConfigError, match=missing):
                        require_acls(settings.model_copy(update={"groups": required}), source, target, deadline(20_000))
        assert syncer.run_pass(now).is_followed


def test_a_key_store_in_pkcs12_lets_data_and_administration_in(secured: SecuredCluster, topic_name: str, tmp_path: Path) -> None:
    store, password = tmp_path / "client.p12", "pa55-of-the-store"
    encryption = serialization.BestAvailableEncryption(password.encode())
    identity, ca = secured.client, secured.authority.identity.certificate
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"client", identity.key, identity.certificate, [ca], encryption))
    trusted = tmp_path / "ca.p12"
    trusted.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [ca], encryption))
    stores = {
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": password,
        "ssl.truststore.location": str(trusted),
        "ssl.truststore.password": password,
    }
    pems = dict.fromkeys(("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"))
    properties = secured.properties("MUTUAL", **(pems | stores))
    assert cluster_id(properties) == secured.node.cluster_id
    create_topic(properties, topic_name)


def _oauth_ways(secured: SecuredCluster, folder: Path) -> dict[str, dict[str, Any]]:
    """Properties by way to get a token that this broker accepts."""
    tokens, key = secured.tokens, rsa.generate_private_key(public_exponent=65537, key_size=2048)
    tokens.keys[users.CLIENT_ID] = key.public_key()
    key_file, token_file = folder / "key.pem", folder / "token"
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    token_file.write_text(tokens.token(users.CLIENT_ID))
    assertion = {
        "sasl.oauthbearer.assertion.private.key.file": str(key_file),
        "sasl.oauthbearer.assertion.claim.aud": tokens.url,
        "sasl.oauthbearer.client.secret": None,
    }
    claims = {"sasl.oauthbearer.assertion.claim.iss": users.CLIENT_ID, "sasl.oauthbearer.assertion.claim.sub": users.CLIENT_ID}
    grant = {"sasl.oauthbearer.grant.type": JWT_BEARER, "sasl.oauthbearer.client.id": None}
    none: dict[str, Any] = {f"sasl.oauthbearer.{name}": None for name in ("client.id", "client.secret", "scope")}
    return {
        "secret in the form": {"sasl.oauthbearer.client.authentication.method": "client_secret_post"},
        "jwt bearer": assertion | claims | grant,
        "key of the client": assertion | {"sasl.oauthbearer.client.authentication.method": "private_key_jwt"},
        "file": none | {"sasl.oauthbearer.token.endpoint.url": token_file.as_uri()},
    }


@pytest.mark.parametrize("way", ["secret in the form", "jwt bearer", "key of the client", "file"])
def test_a_token_of_every_grant_lets_data_and_administration_in(
    secured: SecuredCluster, way: str, topic_name: str, tmp_path: Path
) -> None:
    properties = secured.properties("OAUTH", **_oauth_ways(secured, tmp_path)[way])
    assert cluster_id(properties) == secured.node.cluster_id
    create_topic(properties, topic_name)


def test_a_managed_identity_of_azure_lets_data_and_administration_in(
    secured: SecuredCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = {
        "api://kafka": lambda: secured.tokens.token(users.CLIENT_ID),
        "api://other": lambda: secured.tokens.token("x", aud="y"),
    }
    with AzureMetadata(issue) as service:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", service.url)
        none = {f"sasl.oauthbearer.{name}": None for name in ("client.id", "client.secret", "token.endpoint.url")}
        method = {"sasl.oauthbearer.method": "azure", "sasl.oauthbearer.scope": "api://kafka/.default"}
        properties = secured.properties("OAUTH", **(none | method))
        assert cluster_id(properties) == secured.node.cluster_id
        create_topic(properties, topic_name)
        problem = refusal(properties | {"sasl.oauthbearer.scope": "api://other/.default"})
        assert "refused the token (OAUTHBEARER)" in problem
        assert "check sasl.oauthbearer.scope, the role of this identity" in problem
        assert secured.tokens.issued[-1] not in problem


def test_a_token_file_that_was_renewed_is_used_at_the_next_session(secured: SecuredCluster, tmp_path: Path) -> None:
    file = tmp_path / "token"
    none = {f"sasl.oauthbearer.{name}": None for name in ("client.id", "client.secret", "scope")}
    properties = secured.properties("OAUTH", **(none | {"sasl.oauthbearer.token.endpoint.url": file.as_uri()}))
    secured.tokens.lives_for_s = 4
    try:
        file.write_text(secured.tokens.token(users.CLIENT_ID))
    finally:
        secured.tokens.lives_for_s = 600
    cluster = Cluster(client(properties))
    try:
        assert cluster.cluster_id(deadline()) == secured.node.cluster_id
        file.write_text(secured.tokens.token(users.CLIENT_ID))
        time.sleep(4)  # the life of the first token, at whose end the broker closes a session
        assert cluster.cluster_id(deadline()) == secured.node.cluster_id
    finally:
        cluster.close()
