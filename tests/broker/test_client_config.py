from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.errors import ConfigError

SERVERS = {"bootstrap.servers": "one:9092, [::1]:9093"}


def problems(**properties: object) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_properties({**SERVERS, **properties}, where="source.client")
    return caught.value.problems


def test_bootstrap_servers_are_hosts_and_ports() -> None:
    assert ClientConfig.from_properties(SERVERS).bootstrap == (("one", 9092), ("::1", 9093))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("bootstrap.server", "x:1", "did you mean bootstrap.servers"),
        ("linger.ms", 5, "clients that make records"),
        ("value.serializer", "x", "clients that make records"),
        ("compression.type", "zstd", "clients that make records"),
        ("security.protocol", "SASL_SSL", "not built yet"),
        ("security.protocol", "telnet", "is not one of"),
        ("ssl.ca.location", "/ca.pem", "not built yet"),
        ("request.timeout.ms", "soon", "is not a whole number"),
        ("request.timeout.ms", 0, "is not a whole number"),
        ("bootstrap.servers", "nowhere", "is not host:port"),
        ("bootstrap.servers", "a:1,b:99999", "'b:99999' is not host:port"),
        ("client.id", "${env:SURELY_NOT_SET}", "SURELY_NOT_SET is not set"),
        ("client.id", "${file:/surely/not/there}", "cannot read /surely/not/there"),
    ],
)
def test_what_is_wrong_with_a_property_is_said(name: str, value: object, said: str) -> None:
    (problem,) = problems(**{name: value})
    assert problem.startswith(f"source.client.{name}") or name in problem
    assert said in problem


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
