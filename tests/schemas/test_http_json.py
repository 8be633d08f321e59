"""Credentials, TLS, and servers that are busy, lost, or no Schema Registry."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.registry_server import RegistryFault, RegistryServer
from tests.fakes.schema_registry import StoredVersion
from tests.security.certificates import Authority

from shallow_mirror.config import RegistrySettings
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.schemas import http_json
from shallow_mirror.schemas.registry import SchemaRegistry


class Registries:
    """Clients of one test. `pauses`: the seconds that they wanted to sleep."""

    def __init__(self) -> None:
        self.opened: list[SchemaRegistry] = []
        self.pauses: list[float] = []

    def __call__(self, url: str, **settings: str) -> SchemaRegistry:
        self.opened.append(
            SchemaRegistry(RegistrySettings(url=url, **settings), side="target", alias="west", sleep=self.pauses.append)
        )
        return self.opened[-1]


@pytest.fixture
def registry() -> Iterator[Registries]:
    registries = Registries()
    yield registries
    for opened in registries.opened:
        opened.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "ca")


@pytest.fixture
def tls_server(authority: Authority) -> Iterator[RegistryServer]:
    with RegistryServer(certificate_and_key=authority.signed("here", ("127.0.0.1",)).keystore_file) as server:
        yield server


def test_a_user_logs_in_with_a_password_by_reference(
    registry: Registries, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "pä:ss")
    (tmp_path / "token").write_text("secret\n", encoding="utf-8")
    with RegistryServer(login="mirror:pä:ss") as server:
        assert registry(server.url, username="mirror", password="${env:REGISTRY_PASSWORD}").subjects() == []
    with RegistryServer(token="secret") as server:
        assert registry(server.url, token=f"${{file:{tmp_path / 'token'}}}").subjects() == []


def test_wrong_credentials_are_one_line_without_the_secret(registry: Registries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "wrong-password")
    with RegistryServer(login="mirror:right") as server:
        with pytest.raises(ConfigError) as caught:
            registry(server.url, username="mirror", password="${env:REGISTRY_PASSWORD}").subjects()
        assert str(caught.value) == (
            f"schema registry of west at {server.url} rejects the credentials (401): correct schemas.target.username and password, "
            "or token"
        )
        assert len(server.requests) == 1


def test_a_missing_permission_is_named_with_the_registrys_reason(registry: Registries) -> None:
    with RegistryServer() as server:
        server.faults.append(RegistryFault("GET", "/", 403, body='{"error_code": 40301, "message": "User is denied operation"}'))
        with pytest.raises(ConfigError, match=r"forbids a request \(User is denied operation\): give the user of schemas.target"):
            registry(server.url).subjects()


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("${env:NOT_SET}", "schemas.target.token: environment variable NOT_SET is not set"),
        ("${env:EMPTY}", "schemas.target.token: ${env:EMPTY} is empty, or holds a line break"),
        ("${env:TWO_LINES}", "schemas.target.token: ${env:TWO_LINES} is empty, or holds a line break"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named_by_its_setting(
    registry: Registries, reference: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("TWO_LINES", "a\nX-Header: b")
    with RegistryServer() as server, pytest.raises(ConfigError, match=re.escape(problem)):
        registry(server.url, token=reference).subjects()


def test_tls_needs_the_ca_of_the_registry(registry: Registries, tls_server: RegistryServer, authority: Authority) -> None:
    assert registry(tls_server.url, ca_file=str(authority.identity.certificate_file)).subjects() == []
    with pytest.raises(
        ConfigError, match=r"the certificate of the schema registry .* is not accepted .* set schemas.target.ca_file"
    ):
        registry(tls_server.url).subjects()


def test_a_ca_file_that_cannot_be_read_is_named(registry: Registries, tls_server: RegistryServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schemas.target.ca_file: cannot read .*missing.pem: No such file"):
        registry(tls_server.url, ca_file=str(tmp_path / "missing.pem")).subjects()
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(ConfigError, match=r"empty.pem: holds no certificate in PEM format"):
        registry(tls_server.url, ca_file=str(tmp_path / "empty.pem")).subjects()


def test_a_registry_without_tls_is_recognized(registry: Registries) -> None:
    with RegistryServer() as server, pytest.raises(ConfigError, match=r"does not use TLS: begin schemas.target.url with http://"):
        registry(server.url.replace("http:", "https:")).subjects()


def test_an_unreachable_registry_is_tried_five_times(registry: Registries) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(RetriableError, match=r"REGISTRY_UNREACHABLE: cannot reach the schema registry of west .* refused"):
            registry(f"http://127.0.0.1:{unused.getsockname()[1]}").subjects()
    assert registry.pauses == [0.2, 0.5, 1.0, 2.0]


def test_a_silent_registry_is_given_up(registry: Registries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "_TIMEOUT_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RetriableError, match=r"cannot reach .* timed out"):
        registry(f"http://127.0.0.1:{silent.getsockname()[1]}").subjects()


def test_what_is_no_registry_is_recognized(registry: Registries) -> None:
    with RegistryServer() as server:
        server.faults.append(RegistryFault("GET", "/", 200, times=1, body="<html>Welcome</html>"))
        with pytest.raises(ConfigError, match=r"answers without JSON, unlike a Schema Registry: correct schemas.target.url"):
            registry(server.url).subjects()
        with pytest.raises(ConfigError, match=r"has no /subjects \(404\): correct schemas.target.url, with the path of the API"):
            registry(server.url + "/elsewhere").subjects()
        server.faults.append(RegistryFault("GET", "/", 302, times=1, body=""))
        with pytest.raises(ConfigError, match=r"redirects to another address: set schemas.target.url to the final one"):
            registry(server.url).subjects()


@pytest.mark.parametrize("body", ['{"a": 1}', '"text"', "3"])
def test_a_response_of_another_form_is_an_error(registry: Registries, body: str) -> None:
    with RegistryServer() as server:
        server.faults.append(RegistryFault("GET", "/", 200, body=body))
        with pytest.raises(ConfigError, match="is not that of a Schema Registry"):
            registry(server.url).subjects()
        with pytest.raises(ConfigError, match="is not that of a Schema Registry"):
            registry(server.url).version("a", 1)


def test_null_is_an_empty_list(registry: Registries) -> None:
    """Registries written in Go send it."""
    with RegistryServer() as server:
        server.faults.append(RegistryFault("GET", "/", 200, body="null"))
        assert registry(server.url).subjects() == []
        assert registry(server.url).version_numbers("a") == {}


@pytest.mark.parametrize("page_items", [None, 500, 700, 1500])
def test_long_lists_are_read_page_by_page(registry: Registries, page_items: int | None) -> None:
    with RegistryServer() as server:
        server.page_items = page_items
        for number in range(1, 1501):
            server.rules.versions["a", number] = StoredVersion("a", number, number, {"schema": '"int"'})
        assert list(registry(server.url).version_numbers("a")) == list(range(1, 1501))


def test_a_response_without_end_is_refused(registry: Registries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "_MAX_RESPONSE_BYTES", 1000)
    with RegistryServer() as server:
        server.faults.append(RegistryFault("GET", "/", 200, body=f'["{"x" * 1000}"]'))
        with pytest.raises(ConfigError, match="a response is larger than"):
            registry(server.url).subjects()


def test_a_long_message_of_a_registry_becomes_one_line(registry: Registries) -> None:
    with RegistryServer() as server:
        server.faults.append(
            RegistryFault("PUT", "/config", 422, body='{"error_code": 1, "message": "a\\nb' + "c" * 10_000 + '"}')
        )
        with pytest.raises(ConfigError) as caught:
            registry(server.url).set_compatibility("", "FULL")
        assert "a bccc" in str(caught.value)
        assert len(str(caught.value)) < 800
