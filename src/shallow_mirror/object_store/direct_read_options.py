"""Pure: whether ranges of objects are read by direct reads or by obstore, and the options of direct reads.

A direct read is a GET of a signed URL by this process's own HTTP client (range_reader.py). It understands fewer options than
obstore: where one of the others is given, obstore reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store.store_options import LibraryOptions, is_true, parsed_duration, unprefixed

_POOL_IDLE_MS = 90_000.0
"""How long obstore keeps a connection without requests."""
_USER_AGENT = "shallow-mirror"

_UNDERSTOOD = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    ]
)
"""Options of obstore's HTTP client that a direct read follows, or that do not concern a read."""
_DURATIONS = ("connect_timeout", "timeout", "read_timeout", "pool_idle_timeout")
_CHANGES_READS = ("request_payer", "s3_express", "skip_signature", "sse_customer_key_base64")
"""Options of S3 with which a GET has other headers or another signature."""
_PROXY_VARIABLES = frozenset(["http_proxy", "https_proxy", "all_proxy"])
"""obstore follows them, in upper and lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """When a read is repeated: at most `max_retries` times, and not when `timeout_ms` have passed since it began."""

    max_retries: int
    timeout_ms: float
    first_pause_ms: float
    most_pause_ms: float
    base: float

    def next_pause_ms(self, pause_ms: float, random: float) -> float:
        """Return the pause behind one of `pause_ms`, as obstore chooses it. `random`: of [0, 1)."""
        return min(self.most_pause_ms, self.first_pause_ms + random * max(0.0, pause_ms * self.base - self.first_pause_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectReadOptions:
    """Options of direct reads. `ca_pem` is trusted beside the system's authorities; empty: these alone.

    `timeout_ms` is for one attempt with its body, `read_timeout_ms` for a silence in it; None: no limit of its own.
    """

    allows_http: bool
    verifies: bool
    ca_pem: str
    user_agent: str
    connect_timeout_ms: float
    timeout_ms: float
    read_timeout_ms: float | None
    pool_idle_ms: float
    retry: RetryRules


def reason_for_obstore(kind: str, options: LibraryOptions, environment: Mapping[str, str]) -> str | None:
    """Return why obstore has to read the objects of this store; None if direct reads can.

    `kind`: aws, azure or google. `options` include the HTTP options of the environment.
    """
    if kind != "aws":
        return "the store is not S3"
    for name in sorted(options.client):
        if name not in _UNDERSTOOD:
            return f"option {name}"
    from_environment = {name.lower(): value for name, value in environment.items() if name.lower().startswith("aws_")}
    config = {unprefixed(name): value for name, value in {**from_environment, **options.config}.items()}
    for name in _CHANGES_READS:
        if name in config and is_true(config[name]):
            return f"option {name}"
    for name in sorted(environment):
        if name.lower() in _PROXY_VARIABLES and environment[name]:
            return f"a proxy ({name} in the environment)"
    for name in _DURATIONS:
        if name in options.client and not _is_duration(name, options.client[name]):
            return f"option {name}"
    return None


def direct_read_options(options: LibraryOptions) -> DirectReadOptions:
    """Return the options of direct reads, for options without a reason for obstore."""
    client, backoff = options.client, options.retry["backoff"]
    read_timeout = client.get("read_timeout")
    pool_idle_timeout = client.get("pool_idle_timeout")
    return DirectReadOptions(
        allows_http=is_true(client.get("allow_http", "")),
        verifies=not is_true(client.get("allow_invalid_certificates", "")),
        ca_pem=client.get("root_certificate", ""),
        user_agent=client.get("user_agent", _USER_AGENT),
        connect_timeout_ms=_ms(parsed_duration("connect_timeout", client["connect_timeout"])),
        timeout_ms=_ms(parsed_duration("timeout", client["timeout"])),
        read_timeout_ms=None if read_timeout is None else _ms(parsed_duration("read_timeout", read_timeout)),
        pool_idle_ms=(
            _POOL_IDLE_MS if pool_idle_timeout is None else _ms(parsed_duration("pool_idle_timeout", pool_idle_timeout))
        ),
        retry=RetryRules(
            max_retries=options.retry["max_retries"],
            timeout_ms=_ms(options.retry["retry_timeout"]),
            first_pause_ms=_ms(backoff["init_backoff"]),
            most_pause_ms=_ms(backoff["max_backoff"]),
            base=backoff["base"],
        ),
    )


def _is_duration(name: str, text: str) -> bool:
    try:
        parsed_duration(name, text)
    except ConfigError:
        return False
    return True


def _ms(duration: timedelta) -> float:
    return duration.total_seconds() * 1000
