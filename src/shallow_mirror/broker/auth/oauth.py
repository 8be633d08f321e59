"""Everywhere: bearer tokens, from a token endpoint (client credentials, RFC 6749) or from a callable of the user's."""

from __future__ import annotations

import base64
import difflib
import http.client
import importlib
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsFloat

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.tls_settings import ca_context
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

_ENDPOINT_TIMEOUT_S = 10.0
_MAX_RESPONSE_BYTES = 1 << 20
_USED_FOR = 0.8
"""Share of a token's lifetime: a broker must still accept the token when it arrives there, and for some time after."""

_CREDENTIALS = "sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret and sasl.oauthbearer.scope"
_PASSING = {408, 425, 429}
_EXPECTED = "(token, seconds since the epoch when it expires)"
_PUBLIC_ERROR = re.compile(r"[a-z_]{1,40}")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. `expires_at_s`: since the epoch."""

    value: str = field(repr=False)
    expires_at_s: float
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


class TokenSource(Protocol):
    def token(self, deadline: Deadline) -> Token:
        """Return a token that is valid now. Raises ConfigError, RetriableError."""


class CachedToken:
    """A token source that fetches when there is no token, or when the last one has used up most of its lifetime."""

    def __init__(self, fetch: Callable[[Deadline], Token], now_s: Callable[[], float] = time.time) -> None:
        self._fetch = fetch
        self._now_s = now_s
        self._token: Token | None = None
        self._renew_at_s = 0.0

    def token(self, deadline: Deadline) -> Token:
        now = self._now_s()
        if self._token is None or now >= self._renew_at_s:
            self._token = self._fetch(deadline)
            self._renew_at_s = now + (self._token.expires_at_s - now) * _USED_FOR
        return self._token


def token_source(config: ClientConfig) -> TokenSource:
    """Return the source that the properties name. No request is sent yet."""
    is_oidc = config.value("sasl.oauthbearer.method").lower() == "oidc"
    fetch = _fetch_from_endpoint if is_oidc else _fetch_from_callable
    return CachedToken(lambda deadline: fetch(config, deadline))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the client's secret is for the configured host only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _fetch_from_endpoint(config: ClientConfig, deadline: Deadline) -> Token:
    url = config.value("sasl.oauthbearer.token.endpoint.url")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"sasl.oauthbearer.token.endpoint.url: {url!r} must begin with https:// or http://")
    scope = config.value("sasl.oauthbearer.scope")
    client_credentials = (config.value(f"sasl.oauthbearer.client.{what}") for what in ("id", "secret"))
    credentials = ":".join(urllib.parse.quote_plus(credential) for credential in client_credentials)
    request = urllib.request.Request(
        url,
        data=urllib.parse.urlencode({"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        },
    )
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=ca_context(config, "https")))
    deadline.require(f"a token of {url}")
    try:
        with opener.open(request, timeout=min(_ENDPOINT_TIMEOUT_S, max(deadline.remaining_ms() / 1000, 0.001))) as response:
            body = response.read(_MAX_RESPONSE_BYTES)
    except urllib.error.HTTPError as refused:
        with refused:
            raise _refusal(url, refused.code, refused.read(_MAX_RESPONSE_BYTES)) from None
    except (http.client.InvalidURL, ValueError):
        raise ConfigError(f"sasl.oauthbearer.token.endpoint.url: {url} is not a URL") from None
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, getattr(error, "reason", error)) from None
    return _parse_token(url, body, extensions_of(config.value("sasl.oauthbearer.extensions")))


def _refusal(url: str, status: int, body: bytes) -> MirrorError:
    if _may_pass(status):
        return RetriableError("TOKEN_ENDPOINT_UNREACHABLE", f"the token endpoint {url} answered {status}")
    try:
        oauth_error = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        oauth_error = ""
    reason = f"{status} {oauth_error}" if _PUBLIC_ERROR.fullmatch(oauth_error) else str(status)
    remedy = f"correct {_CREDENTIALS}" if status in (400, 401, 403) else "correct sasl.oauthbearer.token.endpoint.url"
    return ConfigError(f"the token endpoint {url} returned no token ({reason}): {remedy}")


def _may_pass(status: int) -> bool:
    return status >= 500 or status in _PASSING


def _unreachable(url: str, reason: object) -> MirrorError:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ConfigError(
            f"the certificate of the token endpoint {url} is not accepted ({reason.verify_message}): set https.ca.location"
        )
    if isinstance(reason, ssl.SSLError) and reason.reason == "WRONG_VERSION_NUMBER":
        plain = "http" + url.removeprefix("https")
        return ConfigError(
            f"the token endpoint {url} does not use TLS: use {plain} (sasl.oauthbearer.token.endpoint.url), or another port"
        )
    return RetriableError("TOKEN_ENDPOINT_UNREACHABLE", f"cannot reach the token endpoint {url}: {reason}")


def _parse_token(url: str, body: bytes, extensions: Mapping[str, str]) -> Token:
    try:
        document = json.loads(body)
        value = document["access_token"]
        if not (isinstance(value, str) and value.isascii() and value.isprintable()):
            raise ValueError
        expires_at_s = time.time() + float(document["expires_in"]) if "expires_in" in document else _jwt_expiry_s(value)
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{url} answered without a token and its lifetime (access_token and expires_in in JSON): correct "
            "sasl.oauthbearer.token.endpoint.url"
        ) from None
    return Token(value, expires_at_s, extensions)


def _jwt_expiry_s(token: str) -> float:
    """Return `exp` of a JWT, for responses without `expires_in`. Raises ValueError, KeyError, TypeError."""
    _, payload, _ = token.split(".")
    return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])


def extensions_of(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _fetch_from_callable(config: ClientConfig, _deadline: Deadline) -> Token:
    """Call the user's function, which has the signature of confluent-kafka's `oauth_cb`.

    It takes a text and returns (token, seconds since the epoch when it expires), optionally with a principal and a dict of
    extensions.
    """
    name, argument = config.value("oauth_cb"), config.value("sasl.oauthbearer.config")
    source = _import_callable(name)
    try:
        result = source(argument)
    except MirrorError:
        raise
    except OSError as error:
        raise _callable_error(name, error) from None
    except Exception as error:  # noqa: BLE001 - of the user's; its text may hold a secret
        raise ConfigError(f"oauth_cb: {name} raised {type(error).__name__} instead of returning {_EXPECTED}") from None
    return _token_of(name, result, extensions_of(config.value("sasl.oauthbearer.extensions")))


def _import_callable(name: str) -> Callable[[str], Any]:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        raise ConfigError(
            f"oauth_cb: {name} cannot be imported on this machine: install {missing or module_name} where the mirror runs"
        ) from None
    except Exception as error:  # noqa: BLE001 - of the user's; its text may hold a secret
        raise ConfigError(f"oauth_cb: {module_name} raised {type(error).__name__} while it was imported: correct it") from None
    source: Callable[[str], Any] | None = getattr(module, attribute, None)
    if callable(source):
        return source
    functions = [function_name for function_name, value in vars(module).items() if callable(value)]
    near = difflib.get_close_matches(attribute, functions, n=1)
    remedy = f"did you mean {near[0]}?" if near else "correct its name"
    raise ConfigError(f"oauth_cb: {module_name} has no function {attribute}: {remedy}")


def _callable_error(name: str, error: OSError) -> MirrorError:
    status = _status_of(error)
    problem = f"oauth_cb: {name} raised {type(error).__name__}"
    if status is None:
        return RetriableError("OAUTH_CB_FAILED", problem)
    if _may_pass(status):
        return RetriableError("OAUTH_CB_FAILED", f"{problem} ({status})")
    return ConfigError(f"{problem} ({status}): correct the callable, or sasl.oauthbearer.config")


def _status_of(error: OSError) -> int | None:
    """Return the HTTP status of an error of urllib or requests, None for others."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _token_of(name: str, result: object, extensions: Mapping[str, str]) -> Token:
    if isinstance(result, tuple | list) and 2 <= len(result) <= 4:
        value, expires_at_s = result[:2]
        more = result[3] if len(result) == 4 else {}
        if isinstance(value, str) and isinstance(expires_at_s, SupportsFloat) and isinstance(more, Mapping):
            return Token(value, float(expires_at_s), {**extensions, **more})
    raise ConfigError(f"oauth_cb: {name} returned {_type_names(result)} instead of {_EXPECTED}")


def _type_names(value: object) -> str:
    """Return the type of a value, without its content, which may be a secret."""
    if isinstance(value, tuple | list):
        return f"({', '.join(_type_names(item) for item in value)})"
    return "None" if value is None else type(value).__name__
