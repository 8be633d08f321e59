"""The table of docs/reference/sign-in-errors.md: each message is produced here, by a mirror's client properties."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.security.certificates import Authority
from tests.security.fake_clouds import AzureMetadata, Entra, Sts
from tests.security.token_endpoint import JWT_BEARER, TokenEndpoint
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig, TlsSettings
from shallow_mirror.broker.auth.oauth import token_source
from shallow_mirror.errors import ConfigError

RSA_KEY, EC_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048), ec.generate_private_key(ec.SECP256R1())
MSK = "b-1.orders.c1.kafka.eu-west-1.amazonaws.com:9098"
HUB = "orders.servicebus.windows.net:9093"
ROLE = "arn:aws:iam::123456789012:role/mirror"
PREFIX = "sasl.oauthbearer."


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()


def message(properties: dict[str, str]) -> str:
    given = {"bootstrap.servers": "kafka.east:9094"} | properties
    with pytest.raises(ConfigError) as caught:
        sign_in(given)
    (problem,) = caught.value.problems
    return problem


def sign_in(given: dict[str, str]) -> None:
    config = ClientConfig.from_properties(given, where="source.client")
    if config.sasl_mechanism == "OAUTHBEARER":
        token_source(config).token(deadline(20_000))
    elif config.uses_tls:
        TlsSettings.of(config).context()


def ssl(**properties: object) -> dict[str, str]:
    return {"security.protocol": "ssl"} | {name.replace("_", "."): str(value) for name, value in properties.items()}


def sasl(mechanism: str, **properties: str) -> dict[str, str]:
    given = {"security.protocol": "sasl_ssl", "sasl.mechanism": mechanism}
    return given | {f"sasl.{name.replace('_', '.')}": value for name, value in properties.items()}


def oauth(bootstrap: str = "kafka.east:9094", **properties: str) -> dict[str, str]:
    given = {"bootstrap.servers": bootstrap, "security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}
    return given | {PREFIX + name.replace("_", "."): value for name, value in properties.items()}


def configurations(
    folder: Path, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what is wrong, and the properties."""
    monkeypatch.setenv("PASSWORD", "pa55word")
    yield "password in plain text", sasl("PLAIN", username="me", password="pa55word")
    yield "variable not set", sasl("PLAIN", username="me", password="${env:PASWORD}")
    yield "property misspelt", sasl("PLAIN", username="me", password="${env:PASSWORD}", pasword="x")
    yield "SASL without its protocol", {"security.protocol": "ssl", "sasl.mechanism": "PLAIN"}

    authority = Authority(folder, "ca")
    client, other = authority.signed("client"), authority.signed("other")
    yield "certificate without its key", ssl(ssl_certificate_location=client.certificate_file)
    yield (
        "key of another certificate",
        ssl(ssl_certificate_location=client.certificate_file, ssl_key_location=other.key_file),
    )
    store, jks = folder / "client.p12", folder / "client.jks"
    encryption = serialization.BestAvailableEncryption(b"another")
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"c", client.key, client.certificate, None, encryption))
    jks.write_bytes(bytes.fromhex("feedfeed00000002"))
    yield "wrong password of a key store", ssl(ssl_keystore_location=store, ssl_keystore_password="${env:PASSWORD}")
    yield "key store in JKS", ssl(ssl_keystore_location=jks, ssl_keystore_password="${env:PASSWORD}")
    yield "revocation list", ssl(ssl_crl_location=folder / "crl.pem")

    url = endpoint.url
    yield "no token source", oauth()
    yield "method misspelt", oauth(method="aws-msk-iam")
    yield "secret refused", oauth(method="oidc", token_endpoint_url=url, client_id="me", client_secret="${env:PASSWORD}")
    yield (
        "wrong path of the token endpoint",
        oauth(method="oidc", token_endpoint_url=f"{url}s", client_id="me", client_secret="${env:PASSWORD}"),
    )
    monkeypatch.setenv("EC_KEY", pem(EC_KEY))
    monkeypatch.setenv("RSA_KEY", pem(RSA_KEY))
    assertion = {"method": "oidc", "token_endpoint_url": url, "grant_type": JWT_BEARER}
    yield "key of another algorithm", oauth(**assertion, assertion_private_key_pem="${env:EC_KEY}")
    yield (
        "assertion for another audience",
        oauth(**assertion, assertion_private_key_pem="${env:RSA_KEY}", assertion_claim_aud="another"),
    )
    token = folder / "token"
    token.write_text(jwt.encode({"sub": "mirror", "exp": 1_767_225_600}, RSA_KEY, algorithm="RS256"))
    yield "expired token in a file", oauth(method="oidc", token_endpoint_url=token.as_uri())
    yield "file without a token", oauth(method="oidc", token_endpoint_url=(folder / "nothing").as_uri())

    yield "region missing", oauth("10.0.0.1:9098", method="aws_msk_iam")
    yield "option misspelt", oauth(MSK, method="aws_msk_iam", config="role_arn=" + ROLE)
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield "no credentials of AWS", oauth(MSK, method="aws_msk_iam")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTHEMIRROR")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "5ecret")
    with Sts({"AKIDOFTHEMIRROR": "5ecret"}, "eu-west-1", {}) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        yield "role that may not be assumed", oauth(MSK, method="aws_msk_iam", config=f"role.arn={ROLE}")

    yield "scope missing", oauth(method="azure")
    scope = "https://orders.servicebus.windows.net/.default"
    here = authority.signed("entra", ("127.0.0.1",))
    for name in ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "IDENTITY_ENDPOINT", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with AzureMetadata({}) as machine:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", machine.url)
        yield "no managed identity", oauth(HUB, method="azure")
    with Entra(here, "tenant", "client", RSA_KEY.public_key(), {scope: lambda: "token"}) as entra:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", entra.url)
        monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
        monkeypatch.setenv("AZURE_CLIENT_ID", "client")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.identity.certificate_file))
        federated = folder / "federated"
        claims = {"aud": "api://AzureADTokenExchange", "exp": int(time.time()) + 60}
        federated.write_text(jwt.encode(claims, RSA_KEY, algorithm="RS256"))
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(federated))
        yield "unknown scope", oauth(HUB, method="azure", scope="api://another/.default")

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "nothing.json"))
    yield "file of a service account missing", oauth(method="google")
    yield "service credential outside of Databricks", oauth(method="databricks", config="credential=kafka")


def shown(text: str, folder: Path) -> str:
    """Return a message as the page has it: without the folder and the ports of this run."""
    text = text.replace(str(folder), "/etc/kafka")
    return re.sub(r"http://127\.0\.0\.1:\d+", "http://idp.example", text).replace("|", r"\|")


@pytest.mark.slow
def test_the_table_of_the_docs_is_what_wrong_configurations_are_answered(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TokenEndpoint(tmp_path, {"me": "s"}) as endpoint:
        endpoint.keys = {"me": RSA_KEY.public_key()}
        actual = [
            f"| {what} | {shown(message(properties), tmp_path)} |"
            for what, properties in configurations(tmp_path, endpoint, monkeypatch)
        ]
    page = (repository / "docs" / "reference" / "sign-in-errors.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("| ")][1:] == actual, "\n".join(actual)
    assert len(actual) >= 20
