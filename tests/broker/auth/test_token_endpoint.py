"""Grants, ways to authenticate, and files, against an endpoint that verifies what it is sent."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tests.security.fake_clouds import AzureMetadata
from tests.security.token_endpoint import JWT_BEARER, TokenEndpoint
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.auth.oauth import token_source
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import ConfigError, RetriableError

RSA_KEY, EC_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048), ec.generate_private_key(ec.SECP256R1())
PASSPHRASE = "pa55-of-the-assertion"
BASE = {
    "bootstrap.servers": "x:1",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
}


def client(properties: dict[str, Any]) -> ClientConfig:
    given = BASE | {f"sasl.oauthbearer.{name}": value for name, value in properties.items()}
    return ClientConfig.from_properties(given, allows_literal_secrets=True)


def token(properties: dict[str, Any], within_ms: float = 5_000) -> Token:
    return token_source(client(properties)).token(deadline(within_ms))


def pem(key: Any, passphrase: str = "") -> str:
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase.encode()) if passphrase else serialization.NoEncryption()
    )
    return str(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode())


@pytest.fixture
def endpoint(tmp_path: Path) -> Any:
    with TokenEndpoint(tmp_path, {"me": "s:e/c+r=t"}) as served:
        served.keys = {"me": RSA_KEY.public_key(), "curved": EC_KEY.public_key()}
        yield served


def by_secret(endpoint: TokenEndpoint, **others: str) -> dict[str, str]:
    return {"token.endpoint.url": endpoint.url, "client.id": "me", "client.secret": "s:e/c+r=t"} | others


def by_assertion(endpoint: TokenEndpoint, **others: str) -> dict[str, str]:
    given = {
        "token.endpoint.url": endpoint.url,
        "grant.type": JWT_BEARER,
        "assertion.private.key.pem": pem(RSA_KEY),
        "assertion.claim.iss": "me",
        "assertion.claim.sub": "the-mirror",
        "assertion.claim.aud": endpoint.url,
    }
    return {name: value for name, value in (given | others).items() if value}


def test_the_secret_is_sent_in_the_header_or_in_the_body_as_set(endpoint: TokenEndpoint) -> None:
    for accepted, method in (("basic", "client_secret_basic"), ("post", "client_secret_post")):
        endpoint.accepts = (accepted,)
        assert token(by_secret(endpoint, **{"client.authentication.method": method})).value == endpoint.issued[-1]
    with pytest.raises(
        ConfigError, match=r"401 invalid_client.* or set sasl\.oauthbearer\.client\.authentication\.method"
    ) as caught:
        token(by_secret(endpoint))
    assert "s:e/c+r=t" not in str(caught.value)


def test_the_audience_is_requested(endpoint: TokenEndpoint) -> None:
    claims = jwt.decode(token(by_secret(endpoint, audience="kafka-of-payments")).value, options={"verify_signature": False})
    assert claims["aud"] == "kafka-of-payments"


def test_names_of_librdkafka_for_client_credentials_are_aliases(endpoint: TokenEndpoint) -> None:
    names = {"client.credentials.client.id": "me", "client.credentials.client.secret": "s:e/c+r=t"}
    assert token({"token.endpoint.url": endpoint.url, **names}).value == endpoint.issued[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        {},
        {"assertion.private.key.pem": pem(RSA_KEY, PASSPHRASE), "assertion.private.key.passphrase": PASSPHRASE},
        {"assertion.private.key.pem": pem(EC_KEY), "assertion.algorithm": "ES256", "assertion.claim.iss": "curved"},
        {"assertion.claim.jti.include": "true", "assertion.claim.exp.seconds": "60", "assertion.claim.nbf.seconds": "5"},
        {"scope": "mirror", "client.id": "me", "client.secret": "s:e/c+r=t"},
    ],
)
def test_jwt_bearer_is_granted_to_a_signed_assertion(endpoint: TokenEndpoint, others: dict[str, str]) -> None:
    issued = token(by_assertion(endpoint, **others))
    assert issued.value == endpoint.issued[-1]
    assert jwt.decode(issued.value, options={"verify_signature": False})["sub"] == "the-mirror"
    claims = jwt.decode(endpoint.requests[-1]["assertion"], options={"verify_signature": False})
    life, early = int(others.get("assertion.claim.exp.seconds", 300)), int(others.get("assertion.claim.nbf.seconds", 60))
    assert (claims["exp"] - claims["iat"], claims["iat"] - claims["nbf"]) == (life, early)
    assert ("jti" in claims) == ("assertion.claim.jti.include" in others)
    assert endpoint.requests[-1].get("scope") == others.get("scope")


@pytest.mark.slow
def test_a_template_fills_header_and_claims_and_properties_override_it(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    template, key_file = tmp_path / "template.json", tmp_path / "key.pem"
    key_file.write_text(pem(RSA_KEY))
    payload = {"iss": "me", "aud": "elsewhere", "sub": "of-the-template", "team": "data"}
    template.write_text(json.dumps({"header": {"kid": "k1"}, "payload": payload}))
    files = {"assertion.jwt.template.file": str(template), "assertion.private.key.file": str(key_file)}
    without = {"assertion.private.key.pem": "", "assertion.claim.iss": "", "assertion.claim.sub": ""}
    token(by_assertion(endpoint, **(files | without)))
    sent = endpoint.requests[-1]["assertion"]
    assert jwt.get_unverified_header(sent) == {"typ": "JWT", "alg": "RS256", "kid": "k1"}
    claims = jwt.decode(sent, options={"verify_signature": False})
    assert (claims["sub"], claims["team"], claims["aud"]) == ("of-the-template", "data", endpoint.url)


@pytest.mark.slow
def test_an_assertion_of_a_file_is_sent_as_it_is_now(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    given = {"token.endpoint.url": endpoint.url, "grant.type": JWT_BEARER, "assertion.file": str(file)}
    source = client(given)
    for number in (1, 2):
        now = int(time.time())
        claims = {"iss": "me", "sub": f"mirror-{number}", "aud": endpoint.url, "iat": now, "nbf": now - 5, "exp": now + 60}
        file.write_text(jwt.encode(claims, RSA_KEY, algorithm="RS256") + "\n")
        issued = token_source(source).token(deadline())
        assert jwt.decode(issued.value, options={"verify_signature": False})["sub"] == f"mirror-{number}"


@pytest.mark.slow
def test_a_client_authenticates_by_its_key_and_never_by_the_same_assertion_twice(endpoint: TokenEndpoint) -> None:
    endpoint.accepts = ("assertion",)
    given = {
        "token.endpoint.url": endpoint.url,
        "client.id": "me",
        "client.authentication.method": "private_key_jwt",
        "assertion.private.key.pem": pem(RSA_KEY),
    }
    for _ in range(2):
        assert token(given).value == endpoint.issued[-1]
    endpoint.keys["me"] = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    with pytest.raises(ConfigError, match=r"401 invalid_client\): correct sasl\.oauthbearer\.client\.id, .*assertion"):
        token(given)


def test_wrong_credentials_are_sent_once(endpoint: TokenEndpoint) -> None:
    source = token_source(client(by_secret(endpoint, **{"client.secret": "wrong"})))
    with pytest.raises(ConfigError, match="401"):
        source.token(deadline())
    assert len(endpoint.requests) == 1


BAD_KEYS: list[tuple[dict[str, str], str]] = [
    (
        {"assertion.private.key.pem": pem(RSA_KEY, PASSPHRASE)},
        r"private\.key\.pem: the private key is encrypted: set .*passphrase",
    ),
    ({"assertion.private.key.passphrase": "x"}, r"private\.key\.pem: the private key is not encrypted: remove .*passphrase"),
    (
        {"assertion.private.key.pem": pem(RSA_KEY, PASSPHRASE), "assertion.private.key.passphrase": "other"},
        r"passphrase: does not open the private key in sasl\.oauthbearer\.assertion\.private\.key\.pem",
    ),
    ({"assertion.private.key.pem": "abc"}, r"private\.key\.pem: holds no private key in PEM format"),
    ({"assertion.private.key.pem": pem(EC_KEY)}, r"RS256 needs an RSA key: set sasl\.oauthbearer\.assertion\.algorithm"),
    ({"assertion.algorithm": "ES256"}, "ES256 needs an EC key on the curve P-256"),
    (
        {"assertion.private.key.pem": "", "assertion.private.key.file": "/not/there"},
        r"private\.key\.file: cannot read /not/there: No such file",
    ),
    ({"assertion.jwt.template.file": "/not/there"}, r"jwt\.template\.file: cannot read /not/there"),
    ({"assertion.claim.aud": "elsewhere"}, r"401 invalid_client\): correct sasl\.oauthbearer\.assertion\.\*"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("others", "message"), BAD_KEYS)
def test_an_assertion_that_cannot_be_made_is_explained(endpoint: TokenEndpoint, others: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        token(by_assertion(endpoint, **others))
    assert PASSPHRASE not in str(caught.value)
    assert "PRIVATE KEY-----\n" not in str(caught.value)


def test_signing_without_its_library_names_the_extra(endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ConfigError, match=r"pip install 'shallow-mirror\[oauth\]'"):
        token(by_assertion(endpoint))


def test_a_token_of_a_file_is_read_again_for_every_connection(tmp_path: Path, endpoint: TokenEndpoint) -> None:
    file = tmp_path / "token"
    source = token_source(client({"token.endpoint.url": file.as_uri(), "extensions": "a=1"}))
    for subject in ("first", "second"):
        file.write_text(endpoint.token(subject) + "\n")
        actual = source.token(deadline())
        assert (actual.value, dict(actual.extensions)) == (endpoint.issued[-1], {"a": "1"})
        assert 590 < actual.expires_at_s - time.time() <= 600


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*/token: No such file or directory"),
        ("", "is empty: let it contain the token only"),
        ("two words", "holds more than one token in ASCII"),
        ("tökén", "holds more than one token in ASCII"),
        ("expired", r"expired at \d{4}-\d\d-\d\d .* UTC: renew it"),
    ],
)
def test_a_file_without_a_valid_token_is_explained(
    content: str | None, message: str, tmp_path: Path, endpoint: TokenEndpoint
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(endpoint.token("me", exp=1_000_000_000) if content == "expired" else content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        token({"token.endpoint.url": file.as_uri()})
    assert not content or content == "expired" or content not in str(caught.value)
    with pytest.raises(ConfigError, match="is not the URL of a file on this machine"):
        token({"token.endpoint.url": f"file:relative/{file.name}"})


def test_an_opaque_token_of_a_file_has_no_expiry_but_is_sent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opaque-token")
    assert token({"token.endpoint.url": (tmp_path / "token").as_uri()}).value == "opaque-token"


@pytest.mark.slow
def test_the_claim_of_the_subject_must_be_in_the_token(endpoint: TokenEndpoint) -> None:
    assert token(by_secret(endpoint, **{"sub.claim.name": "sub"})).value
    with pytest.raises(ConfigError, match=r"sub\.claim\.name: the token has no claim azp"):
        token(by_secret(endpoint, **{"sub.claim.name": "azp"}))


def test_azure_imds_is_asked_with_its_header_and_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with AzureMetadata({"api://kafka": lambda: "issued-to-the-machine"}) as service:
        given = {
            "metadata.authentication.type": "azure_imds",
            "token.endpoint.url": service.token_url,
            "config": "query=api-version=2018-02-01&resource=api://kafka",
        }
        issued = token(given)
        assert issued.value == "issued-to-the-machine"
        assert 86_000 < issued.expires_at_s - time.time() <= 86_400
        with pytest.raises(ConfigError, match=r"400 invalid_resource\): correct resource and client_id in the query of"):
            token(given | {"config": "query=api-version=2018-02-01&resource=api://other"})


@pytest.mark.slow
def test_an_endpoint_that_sends_byte_by_byte_is_given_up_at_the_deadline() -> None:
    stopped = threading.Event()

    def drip(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not stopped.wait(0.02):
                try:
                    peer.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        given = {"token.endpoint.url": f"http://127.0.0.1:{server.getsockname()[1]}/", "client.id": "me", "client.secret": "s"}
        with pytest.raises(RetriableError, match=r"TOKEN_ENDPOINT_UNREACHABLE: .*timed out"):
            token(given, within_ms=500)
        stopped.set()
        thread.join()


@pytest.mark.parametrize(("status", "expected"), [(503, RetriableError), (401, ConfigError)])
def test_a_refusal_whose_body_does_not_arrive_is_known_by_its_status(status: int, expected: type[Exception]) -> None:
    def refuse(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(1 << 16)
            peer.sendall(b"HTTP/1.1 %d Refused\r\nContent-Length: 1000\r\n\r\n{" % status)
            headers_are_read.wait(0.2)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets the connection

    headers_are_read = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server,))
        thread.start()
        given = {"token.endpoint.url": f"http://127.0.0.1:{server.getsockname()[1]}/", "client.id": "me", "client.secret": "s"}
        with pytest.raises(expected, match=rf"the token endpoint .* \(?{status}"):
            token(given)
        thread.join()


RULES: list[tuple[dict[str, str], str]] = [
    ({"grant.type": "password"}, "grant.type: 'password' is not one of client_credentials, urn:ietf:params"),
    (
        {"metadata.authentication.type": "aws_iam"},
        "aws_iam is not supported; for Amazon MSK set sasl.oauthbearer.method: aws_msk_iam",
    ),
    ({"metadata.authentication.type": "gcp"}, "'gcp' is not one of none, azure_imds"),
    ({"metadata.authentication.type": "azure_imds"}, "config: has no query=QUERY"),
    ({"client.authentication.method": "tls"}, "'tls' is not one of client_secret_basic, client_secret_post, private_key_jwt"),
    ({"assertion.claim.iss": "x"}, "assertion.claim.iss: has no effect without sasl.oauthbearer.grant.type"),
    ({"grant.type": JWT_BEARER}, "assertion.private.key.file: is missing (or "),
    (
        {"grant.type": JWT_BEARER, "assertion.file": "/a", "assertion.algorithm": "ES256"},
        "assertion.algorithm: has no effect with sasl.oauthbearer.assertion.file",
    ),
    ({"grant.type": JWT_BEARER, "assertion.private.key.file": "/a", "assertion.private.key.pem": "b"}, "keep one of them"),
    (
        {"grant.type": JWT_BEARER, "assertion.private.key.file": "/a", "assertion.algorithm": "HS256"},
        "'HS256' is not one of RS256",
    ),
    (
        {"grant.type": JWT_BEARER, "assertion.private.key.file": "/a", "assertion.claim.exp.seconds": "0"},
        "claim.exp.seconds: '0' is not a whole number of at least 1",
    ),
    (
        {"grant.type": JWT_BEARER, "assertion.private.key.file": "/a", "assertion.claim.jti.include": "maybe"},
        "'maybe' is neither true nor false",
    ),
    (
        {"token.endpoint.url": "file:///t", "client.id": "x"},
        "client.id: has no effect with sasl.oauthbearer.token.endpoint.url: file:",
    ),
    ({"assertion.privat.key.file": "/a"}, "did you mean sasl.oauthbearer.assertion.private.key.file?"),
    ({"grant_type": "x"}, "did you mean sasl.oauthbearer.grant.type?"),
]


@pytest.mark.parametrize(("given", "message"), RULES)
def test_properties_that_contradict_each_other_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client(given)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


def test_the_key_of_an_assertion_must_be_a_reference() -> None:
    given = {"token.endpoint.url": "https://t", "grant.type": JWT_BEARER, "assertion.private.key.pem": pem(RSA_KEY)}
    with pytest.raises(ConfigError, match=r"assertion\.private\.key\.pem: must not be in plain text") as caught:
        ClientConfig.from_properties(BASE | {f"sasl.oauthbearer.{name}": value for name, value in given.items()})
    assert "PRIVATE KEY" not in str(caught.value)


def test_all_names_but_two_are_those_of_librdkafka() -> None:
    """As the library of confluent-kafka knows them."""
    from confluent_kafka import Producer, libversion

    from shallow_mirror.broker.auth import KNOWN
    from shallow_mirror.broker.auth.client_properties import ALIASES

    assert libversion()[1] >= (2 << 24 | 16 << 16)
    names = [name for name in (*KNOWN, *ALIASES) if name.startswith("sasl.oauthbearer.")]
    foreign = {"sasl.oauthbearer.audience", "sasl.oauthbearer.client.authentication.method"}
    refused = {name for name in names if _is_refused_by(Producer, name)}
    assert refused == foreign


def _is_refused_by(producer: Callable[[dict[str, str]], Any], name: str) -> bool:
    values = {"method": "default", "grant.type": "client_credentials", "algorithm": "RS256", "seconds": "5", "include": "true"}
    value = next((value for ending, value in values.items() if name.endswith(ending)), "x")
    if name.endswith("metadata.authentication.type"):
        value = "none"
    try:
        producer({name: value})
    except Exception as error:  # noqa: BLE001 - KafkaException, of a library without types
        return "No such configuration property" in str(error)
    return False
