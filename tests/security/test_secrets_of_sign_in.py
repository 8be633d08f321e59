"""Secrets planted in every kind of client properties, and every failure to sign in: none of them is in a log, an error or a pickle."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import traceback
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.security.certificates import Authority
from tests.security.fake_clouds import AzureMetadata, Entra, GoogleTokens, Sts, google_key_file
from tests.security.token_endpoint import JWT_BEARER, TokenEndpoint
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig, TlsSettings
from shallow_mirror.broker.auth.oauth import token_source
from shallow_mirror.errors import ConfigError, MirrorError

SECRET = "pl4nted,secret=of/this+test"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEY_PEM = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
LOCKED_PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(SECRET.encode())
).decode()
REFERENCE, KEY_REFERENCE, LOCKED_REFERENCE = "${env:PLANTED}", "${env:PLANTED_KEY}", "${env:PLANTED_LOCKED_KEY}"
EMAIL = "mirror@some-project.iam.gserviceaccount.com"
MSK = "b-1.x.kafka.eu-west-1.amazonaws.com:9098"
HUB = "hub.servicebus.windows.net:9093"
ROLE = "arn:aws:iam::123456789012:role/mirror"
PREFIX = "sasl.oauthbearer."


def needles(issued: list[str]) -> list[str]:
    """Secrets, keys and tokens, as they are and as protocols write them."""
    encoded = [base64.b64encode(f"{user}:{SECRET}".encode()).decode() for user in ("me", "")]
    lines = [line for pem in (KEY_PEM, LOCKED_PEM) for line in pem.splitlines()[1:-1]]
    return [SECRET, urllib.parse.quote(SECRET), urllib.parse.quote_plus(SECRET), *encoded, *lines, *issued]


def refusing_callable(config: str) -> Any:
    raise PermissionError(f"cannot use {config}")


def broken_callable(config: str) -> Any:
    raise RuntimeError(f"cannot use {config}")


class Ground:
    """What failures need: files, and services that issue `issued`."""

    def __init__(self, folder: Path, endpoint: TokenEndpoint) -> None:
        self.folder, self.endpoint = folder, endpoint
        self.authority = Authority(folder, "ca")
        self.client, self.other = self.authority.signed("client"), self.authority.signed("other")
        self.issued: list[str] = []

    def issue(self) -> str:
        self.issued.append(self.endpoint.token("cloud"))
        return self.issued[-1]

    def file(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def store(self, password: str) -> str:
        encryption = serialization.BestAvailableEncryption(password.encode())
        raw = pkcs12.serialize_key_and_certificates(b"c", self.client.key, self.client.certificate, None, encryption)
        return self.file(f"store-{len(password)}.p12", raw)


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    monkeypatch.setenv("PLANTED", SECRET)
    monkeypatch.setenv("PLANTED_KEY", KEY_PEM)
    monkeypatch.setenv("PLANTED_LOCKED_KEY", LOCKED_PEM)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTHEMIRROR")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    with TokenEndpoint(tmp_path, {"me": "another"}) as endpoint:
        yield Ground(tmp_path, endpoint)


def tls(**properties: str) -> dict[str, str]:
    return {"security.protocol": "ssl"} | {name.replace("_", "."): value for name, value in properties.items()}


def oauth(bootstrap: str = "x:1", **properties: str) -> dict[str, str]:
    given = {"bootstrap.servers": bootstrap, "security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}
    return given | {PREFIX + name.replace("_", "."): value for name, value in properties.items()}


def oidc(ground: Ground, **properties: str) -> dict[str, str]:
    return oauth(method="oidc", token_endpoint_url=ground.endpoint.url, **properties)


def msk(ground: Ground) -> dict[str, str]:
    return oauth(MSK, method="aws_msk_iam", config=f"role.arn={ROLE}")


def callable_named(name: str) -> dict[str, str]:
    return oauth(config=REFERENCE) | {"oauth_cb": f"{__name__}:{name}"}


def google(ground: Ground, key_pem: str, url: str) -> dict[str, str]:
    google_key_file(ground.folder / "google.json", EMAIL, key_pem, url)
    return oauth(method="google")


FAILURES: dict[str, Callable[[Ground], dict[str, str]]] = {
    "key of another certificate": lambda ground: tls(
        ssl_certificate_location=str(ground.other.certificate_file), ssl_key_pem=KEY_REFERENCE
    ),
    "locked key": lambda ground: tls(ssl_certificate_location=str(ground.client.certificate_file), ssl_key_pem=LOCKED_REFERENCE),
    "wrong key password": lambda ground: tls(
        ssl_certificate_location=str(ground.client.certificate_file),
        ssl_key_location=ground.file("locked.pem", ground.client.encrypted_key_pem("another")),
        ssl_key_password=REFERENCE,
    ),
    "wrong store password": lambda ground: tls(ssl_keystore_location=ground.store("another"), ssl_keystore_password=REFERENCE),
    "trust store of nobody": lambda ground: tls(
        ssl_truststore_location=ground.file("damaged.p12", b"\x30\x82"), ssl_truststore_password=REFERENCE
    ),
    "secret refused": lambda ground: oidc(ground, client_id="me", client_secret=REFERENCE),
    "secret refused in the form": lambda ground: oidc(
        ground, client_id="me", client_secret=REFERENCE, client_authentication_method="client_secret_post"
    ),
    "endpoint that is no URL": lambda ground: oauth(
        method="oidc", token_endpoint_url="nowhere", client_id="me", client_secret=REFERENCE
    ),
    "endpoint unreachable": lambda ground: oauth(
        method="oidc", token_endpoint_url="http://127.0.0.1:1/", client_id="me", client_secret=REFERENCE
    ),
    "assertion refused": lambda ground: oidc(
        ground, grant_type=JWT_BEARER, assertion_private_key_pem=KEY_REFERENCE, assertion_claim_iss="me"
    ),
    "assertion with a locked key": lambda ground: oidc(ground, grant_type=JWT_BEARER, assertion_private_key_pem=LOCKED_REFERENCE),
    "assertion with a wrong passphrase": lambda ground: oidc(
        ground,
        grant_type=JWT_BEARER,
        assertion_private_key_pem=LOCKED_REFERENCE,
        assertion_private_key_passphrase="${env:PLANTED_KEY}",
    ),
    "assertion with another algorithm": lambda ground: oidc(
        ground, grant_type=JWT_BEARER, assertion_private_key_pem=KEY_REFERENCE, assertion_algorithm="ES256"
    ),
    "client refused by its key": lambda ground: oidc(
        ground, client_id="me", client_authentication_method="private_key_jwt", assertion_private_key_pem=KEY_REFERENCE
    ),
    "file with an expired token": lambda ground: oauth(
        method="oidc",
        token_endpoint_url=Path(ground.file("token", ground.endpoint.token("me", exp=1_000_000_000))).as_uri(),
    ),
    "file with more than a token": lambda ground: oauth(
        method="oidc", token_endpoint_url=Path(ground.file("words", f"{SECRET} {SECRET}")).as_uri()
    ),
    "token without its subject": lambda ground: oauth(
        method="oidc",
        token_endpoint_url=Path(ground.file("token", ground.endpoint.token("me"))).as_uri(),
        sub_claim_name="azp",
    ),
    "callable with a secret in its error": lambda ground: callable_named("broken_callable"),
    "callable that is refused": lambda ground: callable_named("refusing_callable"),
}


def trial(ground: Ground, properties: dict[str, str]) -> tuple[ClientConfig, MirrorError]:
    config = ClientConfig.from_properties({"bootstrap.servers": "x:1"} | properties)
    travelled: ClientConfig = pickle.loads(pickle.dumps(config))
    with pytest.raises(MirrorError) as caught:
        sign_in(travelled)
    return config, caught.value


def sign_in(config: ClientConfig) -> None:
    if config.sasl_mechanism:
        token_source(config).token(deadline(20_000))
    else:
        TlsSettings.of(config).context()


def assert_nothing_shown(ground: Ground, config: ClientConfig, error: MirrorError, log: str) -> None:
    shown = {
        "message": str(error),
        "repr": repr(error) + repr(config) + str(config),
        "traceback": "".join(traceback.format_exception(error)),
        "pickle": pickle.dumps((config, error)).decode("latin-1"),
        "log": log,
    }
    secrets = needles(ground.endpoint.issued)
    assert [(where, secret) for where, text in shown.items() for secret in secrets if secret in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_to_sign_in_shows_no_secret(failure: str, ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    config, error = trial(ground, FAILURES[failure](ground))
    assert_nothing_shown(ground, config, error, caplog.text)


@pytest.mark.slow
def test_the_libraries_of_the_clouds_log_no_secret(
    ground: Ground, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    entra_identity = ground.authority.signed("entra", ("127.0.0.1",))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(ground.authority.identity.certificate_file))
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "client")
    scope = "https://hub.servicebus.windows.net/.default"
    with (
        Sts({"AKIDOFTHEMIRROR": "another"}, "eu-west-1", {}) as sts,
        Entra(entra_identity, "tenant", "client", KEY.public_key(), {scope: ground.issue}) as entra,
        AzureMetadata({"https://hub.servicebus.windows.net": ground.issue}) as azure,
        GoogleTokens(EMAIL, "no key") as google_tokens,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        trials = [trial(ground, msk(ground))]
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", entra.url)
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", ground.file("federated", ground.endpoint.token("k8s")))
        trials.append(trial(ground, oauth(HUB, method="azure")))
        monkeypatch.delenv("AZURE_FEDERATED_TOKEN_FILE")
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", azure.url)
        trials.append(trial(ground, oauth(HUB, method="azure", client_id="nobody")))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(ground.folder / "google.json"))
        google_tokens._key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
        trials.append(trial(ground, google(ground, KEY_PEM, google_tokens.token_url)))
        ground.file("google.json", json.dumps({"type": "service_account", "private_key": KEY_PEM}))
        trials.append(trial(ground, oauth(method="google")))
    for config, error in trials:
        assert isinstance(error, ConfigError)
        assert_nothing_shown(ground, config, error, caplog.text)


@pytest.mark.parametrize(
    "properties",
    [
        tls(ssl_key_pem=KEY_PEM),
        tls(ssl_keystore_location="/a", ssl_keystore_password=SECRET),
        tls(ssl_truststore_location="/a", ssl_truststore_password=SECRET),
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": SECRET},
        oauth(method="oidc", client_secret=SECRET),
        oauth(method="oidc", client_credentials_client_secret=SECRET),
        oauth(method="oidc", grant_type=JWT_BEARER, assertion_private_key_pem=KEY_PEM),
        oauth(method="oidc", grant_type=JWT_BEARER, assertion_private_key_passphrase=SECRET),
        oauth(config=SECRET) | {"oauth_cb": "m:f"},
        oauth(MSK, method="aws_msk_iam", config=SECRET.replace("=", "")),
        oauth(MSK, method="aws_msk_iam", client_secret=SECRET),
    ],
)
def test_secrets_in_plain_text_are_refused_without_being_shown(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_properties({"bootstrap.servers": "x:1"} | properties)
    assert SECRET.partition("=")[0] not in str(caught.value)
    assert KEY_PEM.splitlines()[1] not in str(caught.value)
