"""Everywhere: the `client:` settings of one cluster: an accepted subset of librdkafka's property names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shallow_mirror.broker.auth import secrets
from shallow_mirror.broker.auth.client_properties import (
    BOOTSTRAP,
    DEFAULTS,
    KNOWN,
    NUMBERS,
    PROTOCOL,
    SECRET,
    canonical_name,
    name_problem,
    security_problems,
)
from shallow_mirror.broker.auth.oauth_properties import CONFIG, has_public_config
from shallow_mirror.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Properties as written: references are resolved when a value is used, so they are pickled and printed unresolved."""

    _properties: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], where: str = "client", *, allows_literal_secrets: bool = False
    ) -> ClientConfig:
        """Check and keep properties. Raises ConfigError with every problem.

        Secrets must be references if a config would travel through Spark.
        """
        given = {
            canonical_name(name): str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in properties.items()
        }
        problems: list[str] = [f"{name}: {problem}" for name in given if (problem := name_problem(name)) is not None]
        if BOOTSTRAP not in given:
            problems.append(f"{BOOTSTRAP}: is missing")
        supported = {name: value for name, value in given.items() if name in KNOWN}
        if not allows_literal_secrets:
            problems += [
                f"{name}: must not be in plain text: use a reference, ${{env:NAME}}, ${{file:PATH}} or ${{secret:scope/key}}"
                for name in supported
                if _is_secret(name, supported) and not secrets.is_only_references(supported[name])
            ]
        config = cls(tuple(sorted({**DEFAULTS, **supported}.items())))
        problems += security_problems({name: config._value_to_check(name, supported) for name in supported})
        problems += config._value_problems(supported)
        if problems:
            raise ConfigError([f"{where}.{problem}" for problem in problems])
        return config

    def _value_to_check(self, name: str, given: Mapping[str, str]) -> str:
        """Return a value as written if it is a secret, or cannot be resolved, which `_value_problems` reports."""
        try:
            return dict(self._properties)[name] if _is_secret(name, given) else self.value(name)
        except ConfigError:
            return dict(self._properties)[name]

    def _value_problems(self, given: Mapping[str, str]) -> list[str]:
        problems: list[str] = []
        for name, written in given.items():
            try:
                value = self.value(name)
            except ConfigError as error:
                problems += error.problems
                continue
            if name in NUMBERS and not (value.isdigit() and NUMBERS[name][0] <= int(value) <= NUMBERS[name][1]):
                problems.append(f"{name}: {written!r} is not a whole number of at least {NUMBERS[name][0]}")
            if name == BOOTSTRAP:
                problems += _bootstrap_problems(value)
            if name in SECRET and not value:
                problems.append(f"{name}: {written} is empty" if secrets.is_only_references(written) else f"{name}: is empty")
        return problems

    def value(self, name: str) -> str:
        """Return a value, resolved now; empty if it is not given. Raises ConfigError."""
        try:
            return secrets.resolve(dict(self._properties).get(name, ""))
        except ConfigError as error:
            raise ConfigError([f"{name}: {problem}" for problem in error.problems]) from None

    def written(self, name: str) -> str | None:
        """Return a value with its references unresolved; None if it is not given."""
        return dict(self._properties).get(name)

    @property
    def references(self) -> frozenset[str]:
        """Return every `${...}` of every property, as written."""
        return frozenset(reference for _, value in self._properties for reference in secrets.references_in(value))

    def __repr__(self) -> str:
        return f"ClientConfig({BOOTSTRAP}={dict(self._properties)[BOOTSTRAP]!r})"

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Return (host, port) of every bootstrap server."""
        return tuple(_host_and_port(server) for server in self.value(BOOTSTRAP).split(","))

    @property
    def client_id(self) -> str:
        return self.value("client.id")

    @property
    def client_rack(self) -> str:
        """Return the rack that is sent with every Fetch; empty if it is not given."""
        return self.value("client.rack")

    @property
    def request_timeout_ms(self) -> int:
        return int(self.value("request.timeout.ms"))

    @property
    def connection_setup_timeout_ms(self) -> int:
        return int(self.value("socket.connection.setup.timeout.ms"))

    @property
    def metadata_max_age_ms(self) -> int:
        return int(self.value("metadata.max.age.ms"))

    @property
    def max_frame_bytes(self) -> int:
        return int(self.value("receive.message.max.bytes"))

    @property
    def protocol(self) -> str:
        """Return plaintext, ssl, sasl_plaintext or sasl_ssl."""
        return self.value(PROTOCOL).lower()

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("ssl")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("sasl")

    @property
    def sasl_mechanism(self) -> str:
        """Return the mechanism; empty without SASL."""
        return self.value("sasl.mechanism").upper()


def pem_text(value: str) -> str:
    r"""Return PEM text. Line breaks may be written as `\n`, where a variable or a secret cannot hold them."""
    return value.replace("\\n", "\n")


def _is_secret(name: str, given: Mapping[str, str]) -> bool:
    return name in SECRET and not (name == CONFIG and has_public_config(given))


def _bootstrap_problems(servers: str) -> list[str]:
    problems = []
    for server in servers.split(","):
        try:
            _host_and_port(server)
        except ValueError:
            problems.append(f"{BOOTSTRAP}: {server.strip()!r} is not host:port")
    return problems


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise ValueError(server)
    return host.strip("[]"), int(port)
