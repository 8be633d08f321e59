"""Tokens of AWS, Azure, Google and Databricks, against services that check requests as the real ones do."""

from __future__ import annotations

import logging
import pickle
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.security.certificates import Authority
from tests.security.fake_clouds import (
    AzureMetadata,
    Entra,
    GoogleMetadata,
    GoogleTokens,
    Sts,
    google_key_file,
    google_problem,
    msk_problem,
    name_google_metadata,
)
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.auth.oauth import TokenSource, token_source
from shallow_mirror.broker.auth.tokens.providers import Provider
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import ConfigError, RetriableError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEY_PEM = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
EMAIL = "mirror@some-project.iam.gserviceaccount.com"
MSK = "b-1.payments.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"
HUB = "payments.servicebus.windows.net:9093"
HUB_SCOPE = "https://payments.servicebus.windows.net/.default"
ACCESS_KEY, SECRET_KEY = "AKIDOFTHEMIRROR", "5ecret/key+of=the-mirror"
ROLE, ROLE_KEYS = "arn:aws:iam::123456789012:role/mirror", ("ASIAOFTHEROLE", "5ecret/of+the=role", "session//token==")


@pytest.fixture(autouse=True)
def without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of this machine, and no metadata service."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "IDENTITY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def config(method: str, bootstrap: str = "x:1", **properties: str) -> ClientConfig:
    given = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": method,
    } | {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in properties.items()}
    return ClientConfig.from_properties(given)


def source(method: str, bootstrap: str = "x:1", **properties: str) -> TokenSource:
    """As on an executor: of a configuration that was pickled."""
    travelled: ClientConfig = pickle.loads(pickle.dumps(config(method, bootstrap, **properties)))
    return token_source(travelled)


def refusal(given: TokenSource) -> str:
    with pytest.raises(ConfigError) as caught:
        given.token(deadline(20_000))
    (problem,) = caught.value.problems
    return problem


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@pytest.mark.parametrize(
    ("bootstrap", "options", "region"),
    [
        (MSK, "", "eu-west-1"),
        ("boot-xyz.c1.kafka-serverless.us-east-2.amazonaws.com:9098", "", "us-east-2"),
        ("private-link.example.org:9098", "region=eu-central-1", "eu-central-1"),
    ],
)
def test_a_token_of_msk_has_the_signature_that_its_brokers_compute(
    aws_keys: None, bootstrap: str, options: str, region: str
) -> None:
    token = source("aws_msk_iam", bootstrap, **({"config": options} if options else {})).token(deadline())
    assert msk_problem(token.value, region, {ACCESS_KEY: (SECRET_KEY, "")}) is None
    assert 890 < token.expires_at_s - time.time() <= 900
    assert msk_problem(token.value, "ap-south-1", {ACCESS_KEY: (SECRET_KEY, "")}) == "host"
    assert msk_problem(token.value, region, {ACCESS_KEY: ("another", "")}) == "signature"


@pytest.mark.slow
def test_a_token_of_msk_is_signed_by_the_role_of_the_properties(aws_keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sts({ACCESS_KEY: SECRET_KEY}, "eu-west-1", {ROLE: ROLE_KEYS}) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        token = source("aws_msk_iam", MSK, config=f"role.arn={ROLE} role.session.name=payments").token(deadline())
        assert msk_problem(token.value, "eu-west-1", {ROLE_KEYS[0]: ROLE_KEYS[1:]}) is None
        assert sts.sessions == ["payments"]
        problem = refusal(source("aws_msk_iam", MSK, config=f"role.arn={ROLE}-of-others"))
        assert "no token was issued (AssumeRole: 403 AccessDenied): let its trust policy name these credentials" in problem
        assert "secret words" not in problem
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        before = len(sts.requests)
        assert "403 SignatureDoesNotMatch" in refusal(source("aws_msk_iam", MSK, config=f"role.arn={ROLE}"))
        assert len(sts.requests) == before + 1  # refused credentials are sent once
        sts.status = 503
        with pytest.raises(RetriableError, match=r"TOKEN_PROVIDER_UNREACHABLE: .*(AssumeRole answered|cannot be reached)"):
            source("aws_msk_iam", MSK, config=f"role.arn={ROLE}").token(deadline())
    with pytest.raises(RetriableError, match=r"a service of AWS cannot be reached \(EndpointConnectionError\)"):
        source("aws_msk_iam", MSK, config=f"role.arn={ROLE}").token(deadline())


def test_aws_without_credentials_is_reported_and_waited_for_once_there_was_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Provider("aws_msk_iam", lambda: _of(config("aws_msk_iam", MSK)))
    with pytest.raises(ConfigError, match="found no credentials on this machine: attach a role"):
        given.token()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    given.token()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RetriableError, match="found no credentials"):
        given.token()
    assert "there is no such profile" in refusal(source("aws_msk_iam", MSK, config="profile=nobody"))


def _of(given: ClientConfig) -> Token:
    from shallow_mirror.broker.auth.tokens.msk import token_of_msk

    return token_of_msk(given)


@pytest.mark.slow
def test_azure_asks_the_metadata_service_for_the_namespace_of_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {"https://payments.servicebus.windows.net": lambda: "of-the-namespace", "api://kafka": lambda: "of-kafka"}
    with AzureMetadata(tokens, client_ids=("user-assigned",)) as service:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", service.url)
        token = source("azure", HUB).token(deadline())
        assert token.value == "of-the-namespace"
        assert 86_000 < token.expires_at_s - time.time() <= 86_400
        other = source("azure", scope="api://kafka/.default", client_id="user-assigned")
        assert other.token(deadline()).value == "of-kafka"
        problem = refusal(source("azure", HUB, client_id="nobody"))
        assert "found no credentials on this machine: assign a managed identity" in problem
        assert "Identity not found" not in problem


def test_azure_logs_nothing_beside_the_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with AzureMetadata({}) as service:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", service.url)
        refusal(source("azure", HUB))
    assert caplog.messages == []


def test_azure_exchanges_the_token_of_a_service_account_at_entra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Authority(tmp_path, "ca")
    here = identity.signed("entra", ("127.0.0.1",))
    federated = tmp_path / "federated"
    now = int(time.time())
    claims = {"iss": "https://k8s", "sub": "system:serviceaccount:a:b", "aud": "api://AzureADTokenExchange", "exp": now + 600}
    federated.write_text(jwt.encode(claims, KEY, algorithm="RS256"))
    with Entra(here, "tenant-1", "client-1", KEY.public_key(), {HUB_SCOPE: lambda: "of-entra"}) as entra:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", entra.url)
        monkeypatch.setenv("AZURE_TENANT_ID", "tenant-1")
        monkeypatch.setenv("AZURE_CLIENT_ID", "client-1")
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(federated))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(identity.identity.certificate_file))
        token = source("azure", HUB).token(deadline())
        assert token.value == "of-entra"
        assert 3_500 < token.expires_at_s - time.time() <= 3_600
        problem = refusal(source("azure", "other.servicebus.windows.net:9093"))
        assert "no token was issued (400 AADSTS500011): correct sasl.oauthbearer.scope" in problem
        before = len(entra.requests)
        assert "AADSTS700016" in refusal(source("azure", HUB, client_id="another-app"))
        assert len(entra.requests) == before + 1
        federated.write_text(jwt.encode(claims | {"exp": now - 600}, KEY, algorithm="RS256"))
        assert "401 AADSTS700024" in refusal(source("azure", HUB))
        entra.status = 503
        with pytest.raises(RetriableError, match="Entra ID or the metadata service answered 503"):
            source("azure", HUB).token(deadline())
    with pytest.raises(RetriableError, match=r"Entra ID or the metadata service cannot be reached \(ServiceRequestError\)"):
        source("azure", HUB).token(deadline())


def test_google_sends_the_token_of_a_machine_in_googles_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_GCE_CHECK")
    with GoogleMetadata(EMAIL) as service:
        name_google_metadata(service.host, monkeypatch)
        token = source("google").token(deadline())
        assert google_problem(token.value, service.issued, EMAIL) is None
        assert 3_500 < token.expires_at_s - time.time() <= 3_600
        named = source("google", config="principal=other@example.org").token(deadline())
        assert google_problem(named.value, service.issued, "other@example.org") is None


@pytest.mark.slow
def test_google_signs_with_the_key_of_a_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GoogleTokens(EMAIL, KEY.public_key()) as service:
        file = google_key_file(tmp_path / "key.json", EMAIL, KEY_PEM, service.token_url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        token = source("google").token(deadline())
        assert google_problem(token.value, service.issued, EMAIL) is None
        assert "PRIVATE" not in refusal_of_other_key(file, service)
        before = len(service.requests)
        service.status = 503
        with pytest.raises(RetriableError, match="TOKEN_PROVIDER_UNREACHABLE: "):
            source("google").token(deadline(20_000))
        assert len(service.requests) > before
    file.write_text("{")
    assert "invalid credentials" in refusal(source("google"))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    assert "google found no credentials on this machine: attach a service account" in refusal(source("google"))


def refusal_of_other_key(file: Path, service: GoogleTokens) -> str:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = other.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    google_key_file(file, EMAIL, pem, service.token_url)
    before = len(service.requests)
    problem = refusal(source("google"))
    assert "no token was issued (invalid_grant): check that the key of the service account" in problem
    assert len(service.requests) == before + 1
    google_key_file(file, EMAIL, KEY_PEM, service.token_url)
    return problem


def databricks(monkeypatch: pytest.MonkeyPatch, credentials: dict[str, Any]) -> None:
    """As on executors of a runtime."""

    def provider(name: str) -> Any:
        return credentials[name]

    module = ModuleType("databricks.service_credentials")
    module.getServiceCredentialsProvider = provider  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "databricks", ModuleType("databricks"))
    monkeypatch.setitem(sys.modules, "databricks.service_credentials", module)


def test_databricks_makes_the_token_that_its_credential_is_for(monkeypatch: pytest.MonkeyPatch, aws_keys: None) -> None:
    from botocore.session import Session

    expiry = int(time.time()) + 3_600
    asked: list[str] = []

    def get_token(scope: str) -> Any:
        asked.append(scope)
        return SimpleNamespace(token="of-azure", expires_on=expiry)

    databricks(monkeypatch, {"aws": Session(), "azure": SimpleNamespace(get_token=get_token), "text": "abc"})
    token = source("databricks", MSK, config="credential=aws").token(deadline())
    assert msk_problem(token.value, "eu-west-1", {ACCESS_KEY: (SECRET_KEY, "")}) is None
    assert source("databricks", HUB, config="credential=azure").token(deadline()).value == "of-azure"
    assert asked == [HUB_SCOPE]
    assert "has no region=REGION" in refusal(source("databricks", config="credential=aws"))
    assert "scope: is missing for a service credential of Azure" in refusal(source("databricks", config="credential=azure"))
    assert "of this kind (str) are not supported" in refusal(source("databricks", config="credential=text"))
    assert "the service credential nobody cannot be used here (KeyError)" in refusal(
        source("databricks", config="credential=nobody")
    )


def test_databricks_elsewhere_names_the_other_methods() -> None:
    problem = refusal(source("databricks", config="credential=aws"))
    assert "needs a runtime of Databricks with service credentials of Unity Catalog" in problem
    assert "elsewhere use aws_msk_iam, azure or google" in problem


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [
        ("aws_msk_iam", "aws_msk_iam_sasl_signer", "msk"),
        ("azure", "azure.identity", "azure"),
        ("google", "google.auth", "google"),
    ],
)
def test_a_library_that_is_not_installed_is_one_line_with_the_extra(
    method: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    bootstrap = {"aws_msk_iam": MSK, "azure": HUB}.get(method, "x:1")
    problem = refusal(source(method, bootstrap))
    assert problem.endswith(f"on driver and executors: pip install 'shallow-mirror[{extra}]'")
    assert "\n" not in problem


@pytest.mark.slow
def test_a_provider_that_hangs_gets_one_request_and_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {"https://payments.servicebus.windows.net": lambda: "at-last"}
    with AzureMetadata(tokens) as service:
        service.holds = threading.Event()
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", service.url)
        given = source("azure", HUB)
        for _ in range(3):
            with pytest.raises(RetriableError, match=r"TOKEN_PROVIDER_UNREACHABLE: .*azure returned no token within"):
                given.token(deadline(200))
        assert [thread.name for thread in threading.enumerate()].count("the token of sasl.oauthbearer.method: azure") == 1
        service.holds.set()
        assert given.token(deadline(20_000)).value == "at-last"
        assert len(service.requests) == 1
        assert given.token(deadline()).value == "at-last"  # kept for most of its life
        assert len(service.requests) == 1


def test_an_error_of_a_library_is_named_without_its_text() -> None:
    def fail() -> Token:
        raise RuntimeError("token=abc")

    with pytest.raises(ConfigError, match="its library raised RuntimeError") as caught:
        Provider("azure", fail).token()
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "bootstrap", "properties", "message"),
    [
        ("aws-msk-iam", MSK, {}, "did you mean aws_msk_iam?"),
        ("aws_msk_iam", "x:1", {}, "config: has no region=REGION, and bootstrap.servers does not name one"),
        ("aws_msk_iam", MSK, {"config": "rolearn=x"}, "unknown option rolearn for aws_msk_iam; did you mean role.arn?"),
        ("aws_msk_iam", MSK, {"config": "5ecret"}, "unknown option for aws_msk_iam; known are region, role.arn"),
        ("aws_msk_iam", MSK, {"config": "region="}, "region has no value: write region=VALUE"),
        ("aws_msk_iam", MSK, {"scope": "x"}, "scope: has no effect with sasl.oauthbearer.method: aws_msk_iam; remove it"),
        ("azure", "x:1", {}, "scope: is missing: it is the application id URI of the Kafka cluster with /.default"),
        ("google", "x:1", {"client_id": "x"}, "client.id: has no effect with sasl.oauthbearer.method: google"),
        ("databricks", "x:1", {}, "config: has no credential=NAME: name a service credential of Unity Catalog"),
    ],
)
def test_properties_of_providers_are_checked(method: str, bootstrap: str, properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(method, bootstrap, **properties)
    assert message in str(caught.value)
    assert "5ecret" not in str(caught.value)
