"""Everywhere: bearer tokens of a token endpoint: client credentials, JWT bearer (RFC 7523), and Azure's instance metadata."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import (
    CLIENT_AUTHENTICATION,
    CLIENT_CREDENTIALS,
    CONFIG,
    GRANT_TYPE,
    JWT_BEARER,
    PREFIX,
    URL,
    is_jwt_bearer,
    parse_options,
)
from shallow_mirror.broker.auth.tls_settings import ca_context
from shallow_mirror.broker.auth.tokens.assertion import assertion_of
from shallow_mirror.broker.auth.tokens.refusals import may_pass
from shallow_mirror.broker.auth.tokens.token import PUBLIC_ERROR, TOKEN_TIMEOUT_S, Token, claims_of, is_sendable
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

IMDS_URL = "http://169.254.169.254/metadata/identity/oauth2/token"

_UNREACHABLE = "TOKEN_ENDPOINT_UNREACHABLE"
_MAX_RESPONSE_BYTES = 1 << 20
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def token_of_endpoint(config: ClientConfig) -> Token:
    """Request a token with the grant of the properties. Raises ConfigError where it is refused, RetriableError."""
    url = _checked_url(config.value(URL))
    form, headers = _grant(config, url)
    request = urllib.request.Request(
        url,
        data=urllib.parse.urlencode({name: value for name, value in form.items() if value}).encode(),
        headers={"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json", **headers},
    )
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=ca_context(config, "https")))
    return _parse_token(url, _send(opener, request, _remedy(config)))


def token_of_azure_imds(config: ClientConfig) -> Token:
    """Request a token of a managed identity from the metadata service of an Azure machine, as librdkafka does."""
    url = _checked_url(config.value(URL) or IMDS_URL)
    query = parse_options(config.value(CONFIG)).get("query", "")
    if query:
        url += ("&" if "?" in url else "?") + query
    request = urllib.request.Request(url, headers={"Metadata": "true", "Accept": "application/json"})
    # Without the proxies of the environment: the address is local to the machine, and Azure refuses forwarded requests.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _NoRedirects,
        urllib.request.HTTPSHandler(context=ca_context(config, "https")),
    )
    remedy = f"correct resource and client_id in the query of {CONFIG}, and assign the managed identity to this machine"
    return _parse_token(url, _send(opener, request, remedy))


def _grant(config: ClientConfig, url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form, which may have empty values, and the headers."""
    form = {name: config.value(PREFIX + name) for name in ("scope", "audience")}
    client_id, secret = config.value(PREFIX + "client.id"), config.value(PREFIX + "client.secret")
    authentication = config.value(CLIENT_AUTHENTICATION).lower()
    if is_jwt_bearer(config.value(GRANT_TYPE)):
        form |= {"grant_type": JWT_BEARER, "assertion": assertion_of(config, {})}
    else:
        form |= {"grant_type": CLIENT_CREDENTIALS}
        if authentication == "private_key_jwt":
            # OpenID Connect requires these claims for the authentication of a client.
            claims = {"iss": client_id, "sub": client_id, "aud": url, "jti": str(uuid.uuid4())}
            assertion = assertion_of(config, claims)
            return form | {
                "client_id": client_id,
                "client_assertion_type": _ASSERTION_TYPE,
                "client_assertion": assertion,
            }, {}
    if not secret:
        return form | {"client_id": client_id}, {}
    if authentication == "client_secret_post":
        return form | {"client_id": client_id, "client_secret": secret}, {}
    credentials = ":".join(urllib.parse.quote_plus(credential) for credential in (client_id, secret))
    return form, {"Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the client's secret is for the configured host only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{URL}: {url!r} must begin with https:// or http:// (or file:/// for a token in a file)")
    return url


def _send(opener: urllib.request.OpenerDirector, request: urllib.request.Request, remedy: str) -> bytes:
    url = request.full_url
    deadline = Deadline.after_ms(TOKEN_TIMEOUT_S * 1000, time.monotonic)
    try:
        with opener.open(request, timeout=TOKEN_TIMEOUT_S) as response:
            return _read(response, deadline)
    except urllib.error.HTTPError as refused:
        with refused:
            raise _refusal(url, refused.code, _read_refusal(refused), remedy) from None
    except (http.client.InvalidURL, ValueError):
        raise ConfigError(f"{URL}: {url} is not a URL") from None
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, getattr(error, "reason", error)) from None


def _read_refusal(refused: urllib.error.HTTPError) -> bytes:
    """Return the body of a refusal; empty if it does not arrive: the status has arrived, and says enough."""
    try:
        return refused.read(_MAX_RESPONSE_BYTES)
    except (OSError, http.client.HTTPException):
        return b""


def _read(response: Any, deadline: Deadline) -> bytes:
    body = bytearray()
    # The timeout of a socket begins again with every byte, the deadline does not.
    while len(body) < _MAX_RESPONSE_BYTES and (chunk := response.read1(_MAX_RESPONSE_BYTES - len(body))):
        body += chunk
        if deadline.is_over():
            raise TimeoutError("timed out")
    return bytes(body)


def _remedy(config: ClientConfig) -> str:
    authentication = config.value(CLIENT_AUTHENTICATION).lower() or "client_secret_basic"
    if is_jwt_bearer(config.value(GRANT_TYPE)):
        return f"correct {PREFIX}assertion.* (key, algorithm, claims), {PREFIX}scope, or the clock of this machine"
    if authentication == "private_key_jwt":
        return f"correct {PREFIX}client.id, {PREFIX}assertion.*, {PREFIX}scope, or the clock of this machine"
    other = "client_secret_post" if authentication == "client_secret_basic" else "client_secret_basic"
    return f"correct {PREFIX}client.id, {PREFIX}client.secret and {PREFIX}scope, or set {CLIENT_AUTHENTICATION}: {other}"


def _refusal(url: str, status: int, body: bytes, remedy: str) -> MirrorError:
    if may_pass(status):
        return RetriableError(_UNREACHABLE, f"the token endpoint {url} answered {status}")
    try:
        oauth_error = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        oauth_error = ""
    reason = f"{status} {oauth_error}" if PUBLIC_ERROR.fullmatch(oauth_error) else str(status)
    return ConfigError(
        f"the token endpoint {url} returned no token ({reason}): {remedy if status in (400, 401, 403) else f'correct {URL}'}"
    )


def _unreachable(url: str, reason: object) -> MirrorError:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return ConfigError(
            f"the certificate of the token endpoint {url} is not accepted ({reason.verify_message}): set https.ca.location"
        )
    if isinstance(reason, ssl.SSLError) and reason.reason == "WRONG_VERSION_NUMBER":
        plain = "http" + url.removeprefix("https")
        return ConfigError(f"the token endpoint {url} does not use TLS: use {plain} ({URL}), or another port")
    return RetriableError(_UNREACHABLE, f"cannot reach the token endpoint {url}: {reason}")


def no_answer(url: str) -> RetriableError:
    """Return the error of an endpoint that a connection does not wait for any longer."""
    return RetriableError(_UNREACHABLE, f"cannot reach the token endpoint {url}: timed out")


def _parse_token(url: str, body: bytes) -> Token:
    try:
        document = json.loads(body)
        value = document["access_token"]
        if not is_sendable(value):
            raise ValueError
        # Some endpoints, such as Azure's, return the number as text.
        lifetime = document.get("expires_in")
        expires_at_s = float(claims_of(value)["exp"]) if lifetime is None else time.time() + float(lifetime)
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{url} answered without a token and its lifetime (access_token and expires_in in JSON): correct {URL}"
        ) from None
    return Token(value, expires_at_s)
