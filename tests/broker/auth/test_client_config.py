from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.secrets import handed_over_name
from shallow_mirror.errors import ConfigError

SERVERS = {"bootstrap.servers": "one:9092, [::1]:9093"}


def problems(**properties: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_properties({**SERVERS, **properties}, where="source.client")
    return caught.value.problems


def test_bootstrap_servers_are_hosts_and_ports() -> None:
    assert ClientConfig.from_properties(SERVERS).bootstrap == (("one", 9092), ("::1", 9093))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bootstrap.server", "x:1", "did you mean bootstrap.servers"),
        ("linger.ms", 5, "no effect on record batches"),
        ("value.serializer", "x", "no effect on record batches"),
        ("compression.type", "zstd", "no effect on record batches"),
        ("security.protocol", "telnet", "is not one of"),
        ("ssl.ca.location", "/ca.pem", "has no effect with security.protocol: plaintext; set security.protocol: ssl"),
        ("sasl.username", "me", "has no effect with security.protocol: plaintext; set security.protocol: sasl_ssl"),
        ("ssl.keystore.location", "x.p12", "has no effect with security.protocol: plaintext; set security.protocol: ssl"),
        ("ssl.keystore.type", "JKS", "stores are PKCS#12; remove it"),
        ("ssl.keystore.certificate.chain", "x", "use ssl.ca.pem, ssl.certificate.pem and ssl.key.pem"),
        ("ssl.crl.location", "/crl.pem", "revocation (CRL, OCSP) is not checked"),
        ("sasl.jaas.config", "x", "use sasl.username and sasl.password"),
        ("sasl.kerberos.service.name", "kafka", "has no effect with security.protocol: plaintext"),
        ("sasl.kerberos.kinit.cmd", "kinit", "is renewed before it ends, without kinit"),
        ("sasl.kerberos.min.time.before.relogin", 60000, "has no effect: a ticket of sasl.kerberos.keytab is renewed"),
        ("sasl.kerberos.ticket.renew.jitter", 0.05, "has no effect: a ticket of sasl.kerberos.keytab is renewed"),
        ("sasl.kerberos.principle", "x", "did you mean sasl.kerberos.principal?"),
        ("ssl.cipher.suites", "x", "is not supported; known are ssl.ca.location"),
        ("sasl.pasword", "x", "did you mean sasl.password?"),
        ("request.timeout.ms", "soon", "is not a whole number"),
        ("request.timeout.ms", 0, "is not a whole number"),
        ("bootstrap.servers", "nowhere", "is not host:port"),
        ("bootstrap.servers", "a:1,b:99999", "'b:99999' is not host:port"),
        ("client.id", "${env:SURELY_NOT_SET}", "SURELY_NOT_SET is not set"),
        ("client.id", "${file:/surely/not/there}", "cannot read /surely/not/there"),
    ],
)
def test_what_is_wrong_with_a_property_is_said(name: str, value: object, message: str) -> None:
    (problem,) = problems(**{name: value})
    assert problem.startswith(f"source.client.{name}") or name in problem
    assert message in problem


TLS = {"security.protocol": "ssl"}
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u"}
GSSAPI = {"security.protocol": "SASL_SSL", "sasl.mechanism": "gssapi"}
OAUTH = {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}
OIDC = OAUTH | {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://t",
    "sasl.oauthbearer.client.id": "i",
}


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "SASL_SSL"}, ["sasl.mechanism: is missing; it is one of PLAIN, SCRAM-SHA-256"]),
        (SCRAM, ["sasl.password: is missing for SCRAM-SHA-256"]),
        (SCRAM | {"sasl.password": "hunter2"}, ["sasl.password: must not be in plain text: use a reference"]),
        (SCRAM | {"sasl.password": "hunter${env:HOME}"}, ["sasl.password: must not be in plain text"]),
        (SCRAM | {"sasl.password": "${env:EMPTY}"}, ["sasl.password: ${env:EMPTY} is empty"]),
        (
            SCRAM | {"sasl.password": "${env:HOME}", "oauth_cb": "m:f"},
            ["oauth_cb: has no effect with sasl.mechanism: SCRAM-SHA-256"],
        ),
        (SCRAM | {"sasl.mechanism": "NTLM"}, ["sasl.mechanism: 'NTLM' is not one of PLAIN, SCRAM"]),
        (GSSAPI | {"sasl.username": "u"}, ["sasl.username: has no effect with sasl.mechanism: GSSAPI; remove it"]),
        (GSSAPI | {"oauth_cb": "m:f"}, ["oauth_cb: has no effect with sasl.mechanism: GSSAPI; remove it"]),
        (GSSAPI | {"sasl.kerberos.keytab": ""}, ["sasl.kerberos.keytab: is empty: remove it, or give it a value"]),
        (GSSAPI | {"sasl.kerberos.service.name": "kafka/host"}, ["sasl.kerberos.service.name: is one part of the principal"]),
        (
            SCRAM | {"sasl.password": "${env:HOME}", "sasl.kerberos.keytab": "k"},
            ["sasl.kerberos.keytab: has no effect with sasl.mechanism: SCRAM-SHA-256; remove it"],
        ),
        (
            OAUTH | {"oauth_cb": "m:f", "sasl.kerberos.principal": "k"},
            ["sasl.kerberos.principal: has no effect with sasl.mechanism: OAUTHBEARER; remove it"],
        ),
        (OAUTH, ["oauth_cb: is missing: name a callable as module:function, or set sasl.oauthbearer.method: oidc"]),
        (OAUTH | {"oauth_cb": "module.function"}, ["oauth_cb: is not module:function"]),
        (
            OAUTH | {"sasl.oauthbearer.method": "magic"},
            ["sasl.oauthbearer.method: 'magic' is not one of default, oidc, aws_msk_iam"],
        ),
        (OIDC, ["sasl.oauthbearer.client.secret: is missing for sasl.oauthbearer.method: oidc"]),
        (TLS | {"ssl.ca.location": "/a", "ssl.ca.pem": "b"}, ["ssl.ca.pem: is given beside ssl.ca.location"]),
        (TLS | {"ssl.certificate.location": "/a"}, ["ssl.key.location: is missing (or ssl.key.pem)"]),
        (TLS | {"ssl.key.location": "/a"}, ["ssl.certificate.location: is missing"]),
        (TLS | {"ssl.key.password": "${env:HOME}"}, ["ssl.key.password: is given without a private key"]),
        (
            TLS | {"ssl.keystore.location": "/a", "ssl.key.location": "/b", "ssl.certificate.location": "/c"},
            ["ssl.certificate.location: is given beside ssl.keystore.location", "ssl.key.location: is given beside"],
        ),
        (TLS | {"ssl.truststore.location": "/a", "ssl.ca.pem": "b"}, ["ssl.ca.pem: is given beside ssl.truststore.location"]),
        (TLS | {"ssl.keystore.password": "${env:HOME}"}, ["ssl.keystore.password: is given without ssl.keystore.location"]),
        (TLS | {"ssl.truststore.location": "/a", "ssl.truststore.password": "pa55"}, ["must not be in plain text"]),
        (TLS | {"ssl.endpoint.identification.algorithm": "maybe"}, ["'maybe' is neither https nor none"]),
        (TLS | {"enable.ssl.certificate.verification": "no"}, ["'no' is neither true nor false"]),
        (SCRAM | {"sasl.password": "${secret:nowhere}"}, ["${secret:nowhere} is not ${secret:scope/key}"]),
        (SCRAM | {"sasl.password": "${secret:scope/key}"}, ["sasl.password: ${secret:...} needs Databricks"]),
    ],
)
def test_security_that_contradicts_itself_is_said(
    properties: dict[str, object], message: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    actual = problems(**properties)
    assert [expected in reported for expected, reported in zip(message, actual, strict=True)] == [True] * len(actual), actual
    assert not any("hunter" in problem for problem in actual)


def test_a_secret_of_databricks_is_asked_for_or_was_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Secrets:
        @staticmethod
        def get(scope: str, key: str) -> str:
            if scope != "kafka":
                raise RuntimeError("token=abc: no such scope")
            return f"secret of {scope}/{key}"

    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = SimpleNamespace(secrets=Secrets)  # type: ignore[attr-defined]
    for name in ("databricks", "databricks.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    config = ClientConfig.from_properties({**SERVERS, **SCRAM, "sasl.password": "${secret:kafka/password}"})
    assert config.value("sasl.password") == "secret of kafka/password"
    (problem,) = problems(**SCRAM, **{"sasl.password": "${secret:other/password}"})
    assert "secret other/password cannot be read from Databricks here (RuntimeError)" in problem
    assert "abc" not in problem
    monkeypatch.setenv(handed_over_name("${secret:other/password}"), "handed over")
    assert ClientConfig.from_properties({**SERVERS, **SCRAM, "sasl.password": "${secret:other/password}"}).value(
        "sasl.password"
    ) == ("handed over")


def test_secrets_are_in_no_text_of_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ClientConfig.from_properties({**SERVERS, **SCRAM, "sasl.password": "hunter2"}, allows_literal_secrets=True)
    assert "hunter2" not in repr(config) + str(config)
    monkeypatch.setenv("PASSWORD", "hunter2")
    referring = ClientConfig.from_properties({**SERVERS, **SCRAM, "sasl.password": "${env:PASSWORD}"})
    assert b"hunter2" not in pickle.dumps(referring)
    assert referring.references == {"${env:PASSWORD}"}
    assert referring.value("sasl.password") == "hunter2"


def test_all_problems_are_listed_at_once() -> None:
    assert len(problems(**{"linger.ms": 1, "acks": "all", "metadata.max.age.ms": "x"})) == 3


def test_references_are_resolved_where_they_are_used(tmp_path: Path) -> None:
    name = tmp_path / "name"
    name.write_text("first\n")
    config = ClientConfig.from_properties({**SERVERS, "client.id": f"${{file:{name}}}"})
    name.write_text("second\n")
    assert config.client_id == "second"


def test_a_config_is_a_key_and_travels() -> None:
    config = ClientConfig.from_properties({**SERVERS, "socket.timeout.ms": 1234})
    assert pickle.loads(pickle.dumps(config)) == config
    assert {config: 1}[config] == 1
    assert config.request_timeout_ms == 1234


def test_kerberos_travels_as_the_path_of_its_keytab(tmp_path: Path) -> None:
    keytab = tmp_path / "k.keytab"
    keytab.write_bytes(b"the key itself")
    config = ClientConfig.from_properties({**SERVERS, **GSSAPI, "sasl.kerberos.keytab": str(keytab)})
    pickled = pickle.dumps(config)
    assert str(keytab).encode() in pickled
    assert b"the key itself" not in pickled
