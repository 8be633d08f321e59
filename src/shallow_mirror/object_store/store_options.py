"""Everywhere: `storage.options` of the mirror file, resolved at the moment of use, with the timeouts of every request.

deltalake, which reads the tables, and obstore, which reads objects, know the same names: both are the Rust library object_store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shallow_mirror.broker.auth import secrets
from shallow_mirror.errors import ConfigError

CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 20
"""Of one request and its whole answer: a store that accepts a connection and does not respond is given up after this."""
RETRY_S = 15
"""A retry of a request begins only within this time. Less than REQUEST_TIMEOUT_S: a request that hung is not repeated."""
MOST_RETRIES = 6
_FIRST_PAUSE_MS, _MOST_PAUSE_MS = 100, 3_000

_CLIENT_OPTIONS: Mapping[str, str] = {
    "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
    "timeout": f"{REQUEST_TIMEOUT_S}s",
    "max_retries": str(MOST_RETRIES),
    "retry_timeout": f"{RETRY_S}s",
    "backoff_config.init_backoff": f"{_FIRST_PAUSE_MS}ms",
    "backoff_config.max_backoff": f"{_MOST_PAUSE_MS}ms",
}
"""The libraries' own are 30 s for a request, ten retries and 180 s: longer than a transaction should wait for its decision."""

_SECRET = re.compile(r"secret|token(?!_file)|password|sas|(account|access|master|customer)_key(?!_id|_path)", re.IGNORECASE)

_HTTP_OPTIONS = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    ]
)
"""obstore takes these apart from those of the kind of store; object_store knows them with and without the prefix of that kind."""
_PREFIX = re.compile(r"^(aws|azure|google)_")
_UNSIGNED_NAMES = frozenset(["aws_unsigned_payload", "unsigned_payload"])
_ENDPOINT_NAMES = frozenset(["aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url"])
"""All names that object_store 0.13 has for them."""
_FALSE = ("false", "0", "off", "no", "n", "")
"""How object_store writes it."""
_UNIT_MS = {
    **dict.fromkeys(("ms", "msec", "millis"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000),
}
_DURATION = re.compile(rf"(\d+)\s*({'|'.join(sorted(_UNIT_MS, key=len, reverse=True))})(?![a-z])\s*")


@dataclass(frozen=True, slots=True)
class LibraryOptions:
    """Options as obstore takes them: of the kind of store, of its HTTP client, of repeated requests."""

    config: Mapping[str, str]
    client: Mapping[str, str]
    retry: Mapping[str, Any]


def library_options(resolved: Mapping[str, str]) -> LibraryOptions:
    """Divide resolved options into those of obstore. Raises ConfigError for a number or a duration that is none."""
    config: dict[str, str] = {}
    client: dict[str, str] = {}
    retry: dict[str, Any] = {}
    backoff: dict[str, Any] = {"base": 2}
    for written, value in resolved.items():
        name = written.lower()
        bare = unprefixed(name)
        if name == "max_retries":
            retry[name] = int(_number(name, value))
        elif name == "retry_timeout":
            retry[name] = parsed_duration(name, value)
        elif name in ("backoff_config.init_backoff", "backoff_config.max_backoff"):
            backoff[name.partition(".")[2]] = parsed_duration(name, value)
        elif name == "backoff_config.base":
            backoff["base"] = _number(name, value)
        elif bare in _HTTP_OPTIONS:
            client[bare] = value
        else:
            config[name] = value
    return LibraryOptions(config, client, {**retry, "backoff": backoff})


def environment_http_options(environment: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return HTTP options such as AWS_ALLOW_HTTP of an environment: deltalake reads them there, and obstore does not."""
    names = {name: name.lower().removeprefix(f"{prefix}_") for name in environment if name.lower().startswith(f"{prefix}_")}
    return {bare: environment[name] for name, bare in names.items() if bare in _HTTP_OPTIONS}


def payload_options(config: Mapping[str, str], client: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the option with which uploads to S3 are signed without a hash of their bytes, if TLS protects them; else {}.

    `config` and `client` are those of LibraryOptions, with the HTTP options of the environment. TLS protects requests to an
    https endpoint whose certificate is verified; Amazon's, the default, is one. An option that says whether the bytes are
    signed wins either way, in `config` or in the environment.
    """
    from_environment = {name.lower(): value for name, value in environment.items() if name.lower().startswith("aws_")}
    if _values_of(_UNSIGNED_NAMES, config) or _values_of(_UNSIGNED_NAMES, from_environment):
        return {}
    endpoints = _values_of(_ENDPOINT_NAMES, config) or _values_of(_ENDPOINT_NAMES, from_environment)
    is_https = all(endpoint.strip().lower().startswith("https://") for endpoint in endpoints)
    is_verified = not is_true(client.get("allow_invalid_certificates", ""))
    return {"aws_unsigned_payload": "true"} if is_https and is_verified else {}


def unprefixed(name: str) -> str:
    """Return the name of an option, in lower case, without the prefix of the kind of store."""
    return _PREFIX.sub("", name)


def is_true(value: str) -> bool:
    """Return whether object_store takes the value of an option as true."""
    return value.strip().lower() not in _FALSE


def _values_of(names: frozenset[str], options: Mapping[str, str]) -> list[str]:
    return [value for name, value in options.items() if name in names]


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"storage.options.{name}: {text!r} is not a number") from None


def parsed_duration(name: str, text: str) -> timedelta:
    """Return a duration as object_store writes it. Raises ConfigError, which names the option."""
    parts = list(_DURATION.finditer(text.strip()))
    if not parts or "".join(part[0] for part in parts) != text.strip():
        raise ConfigError(f"storage.options.{name}: {text!r} is not a duration, such as 500ms, 15s or 1m 30s")
    return timedelta(milliseconds=sum(int(part[1]) * _UNIT_MS[part[2]] for part in parts))


def resolved_options(written: Mapping[str, str]) -> dict[str, str]:
    """Return options with references resolved now, and the timeouts of this file if none are given. Raises ConfigError.

    Other options come from the environment (AWS_*, AZURE_*, GOOGLE_*), which the library reads.
    """
    given = {name: secrets.resolve(value) for name, value in written.items()}
    names = {name.lower() for name in given}
    return {name: value for name, value in _CLIENT_OPTIONS.items() if name not in names} | given


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """Return the problems of `storage.options`. Pure but for references, which are resolved to see that they can be."""
    problems: list[str] = []
    for name, value in options.items():
        text = str(value)
        if _SECRET.search(name) and not secrets.is_only_references(text):
            problems.append(
                f"{name}: must not be in plain text: use a reference, ${{env:NAME}}, ${{file:PATH}} or ${{secret:scope/key}}"
            )
            continue
        try:
            secrets.resolve(text)
        except ConfigError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    return problems
