"""Everywhere: the `client:` settings of one cluster: an accepted subset of librdkafka's property names."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shallow_mirror.errors import ConfigError

_BOOTSTRAP = "bootstrap.servers"
_DEFAULTS: Mapping[str, str] = {
    _BOOTSTRAP: "",
    "client.id": "shallow-mirror",
    "security.protocol": "plaintext",
    "request.timeout.ms": "30000",  # how long one request may take before the connection is given up
    "socket.connection.setup.timeout.ms": "10000",
    "metadata.max.age.ms": "300000",  # as Java's metadata.max.age.ms
    "receive.message.max.bytes": "100000000",  # the largest answer accepted; socket.request.max.bytes of brokers is 104857600
}
_ALIASES = {"socket.timeout.ms": "request.timeout.ms", "metadata.broker.list": _BOOTSTRAP}
_NUMBERS = {name: (1, 2_000_000_000) for name in _DEFAULTS if name.endswith(("ms", "bytes"))}
_RECORD_LEVEL = re.compile(
    r"(key|value)\.(de)?serializer|compression\.|linger\.ms|batch\.(size|num\.messages)|queue\.buffering\.|partitioner|acks$|enable\.idempotence|transactional\.id|group\.id|isolation\.level|auto\.offset\.reset"
)
_SECURITY = re.compile(r"(sasl|ssl|enable\.ssl|enable\.sasl)\.")
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_PROTOCOLS = {"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """As written: references are resolved where a value is used, so they travel and print unresolved."""

    _properties: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object], where: str = "client") -> ClientConfig:
        """Raises ConfigError with every problem."""
        problems: list[str] = []
        given = {_ALIASES.get(name, name): _text(value) for name, value in properties.items()}
        for name in given:
            problems += _name_problems(name, where)
        if _BOOTSTRAP not in given:
            problems.append(f"{where}.{_BOOTSTRAP}: is missing")
        protocol = given.get("security.protocol", "plaintext").lower()
        if protocol in _PROTOCOLS - {"plaintext"}:
            problems.append(f"{where}.security.protocol: {protocol} is not built yet; only plaintext listeners can be used")
        elif protocol not in _PROTOCOLS:
            problems.append(f"{where}.security.protocol: {protocol!r} is not one of {', '.join(sorted(_PROTOCOLS))}")
        config = cls(tuple(sorted({**_DEFAULTS, **{name: value for name, value in given.items() if name in _DEFAULTS}}.items())))
        problems += config._value_problems(where, given)
        if problems:
            raise ConfigError(problems)
        return config

    def _value_problems(self, where: str, given: Mapping[str, str]) -> list[str]:
        problems = []
        for name in given:
            if name not in _DEFAULTS:
                continue
            try:
                value = self._resolved(name)
            except ConfigError as error:
                problems += [f"{where}.{problem}" for problem in error.problems]
                continue
            if name in _NUMBERS and not (value.isdigit() and _NUMBERS[name][0] <= int(value) <= _NUMBERS[name][1]):
                problems.append(f"{where}.{name}: {value!r} is not a whole number of at least {_NUMBERS[name][0]}")
            if name == _BOOTSTRAP:
                problems += [f"{where}.{problem}" for problem in _bootstrap_problems(value)]
        return problems

    def _resolved(self, name: str) -> str:
        return _REFERENCE.sub(lambda match: _resolve(name, match[1], match[2]), dict(self._properties)[name])

    def __repr__(self) -> str:
        return f"ClientConfig({_BOOTSTRAP}={dict(self._properties)[_BOOTSTRAP]!r})"

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of every bootstrap broker."""
        return tuple(_host_and_port(one) for one in self._resolved(_BOOTSTRAP).split(","))

    @property
    def client_id(self) -> str:
        return self._resolved("client.id")

    @property
    def request_timeout_ms(self) -> int:
        return int(self._resolved("request.timeout.ms"))

    @property
    def connection_setup_timeout_ms(self) -> int:
        return int(self._resolved("socket.connection.setup.timeout.ms"))

    @property
    def metadata_max_age_ms(self) -> int:
        return int(self._resolved("metadata.max.age.ms"))

    @property
    def max_frame_bytes(self) -> int:
        return int(self._resolved("receive.message.max.bytes"))

    def as_confluent(self) -> dict[str, str]:
        """For confluent_kafka's AdminClient."""
        return {_BOOTSTRAP: self._resolved(_BOOTSTRAP), "client.id": self.client_id}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name_problems(name: str, where: str) -> list[str]:
    if name in _DEFAULTS:
        return []
    if _RECORD_LEVEL.match(name):
        return [f"{where}.{name}: is a setting of clients that make records; batches are copied as they are. Remove it"]
    if _SECURITY.match(name):
        return [f"{where}.{name}: TLS and SASL are not built yet; only plaintext listeners can be used"]
    near = difflib.get_close_matches(name, [*_DEFAULTS, *_ALIASES], n=1)
    return [f"{where}.{name}: unknown property; " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(_DEFAULTS)}")]


def _resolve(name: str, kind: str, key: str) -> str:
    if kind == "env":
        if key not in os.environ:
            raise ConfigError(f"{name}: environment variable {key} is not set")
        return os.environ[key]
    try:
        return Path(key).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {key}: {error.strerror}") from error


def _bootstrap_problems(servers: str) -> list[str]:
    problems = []
    for one in servers.split(","):
        try:
            _host_and_port(one)
        except ValueError:
            problems.append(f"{_BOOTSTRAP}: {one.strip()!r} is not host:port")
    return problems


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise ValueError(server)
    return host.strip("[]"), int(port)
