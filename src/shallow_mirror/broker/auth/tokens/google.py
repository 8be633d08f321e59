"""Everywhere: tokens of Google Cloud's Managed Service for Apache Kafka, from google-auth."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC
from typing import Any

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import CONFIG, PREFIX, parse_options
from shallow_mirror.broker.auth.tokens.credentials import missing_credentials, missing_library, refused, unreachable
from shallow_mirror.broker.auth.tokens.token import PUBLIC_ERROR, Token, url64
from shallow_mirror.errors import ConfigError, MirrorError

_METHOD = "google"
_TIMEOUT_S = 5
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_FIND = "attach a service account to the machine, use workload identity, or set GOOGLE_APPLICATION_CREDENTIALS"


def token_of_google(config: ClientConfig, credentials: Any = None) -> Token:
    """Return a token in the format of Google's brokers: a header, claims and the access token, each in base64url.

    `credentials`: of google-auth; None: the application default credentials.
    """
    try:
        import google.auth
        import google.auth.exceptions
        import google.auth.transport.requests
        import requests
    except ImportError:
        raise missing_library(_METHOD, "google-auth[requests]", "google") from None
    try:
        with requests.Session() as session:
            request = google.auth.transport.requests.Request(session)

            def bounded(*args: Any, timeout: float = _TIMEOUT_S, **others: Any) -> Any:
                return request(*args, timeout=min(timeout, _TIMEOUT_S), **others)

            if credentials is None:
                scopes = config.value(PREFIX + "scope").split() or [_SCOPE]
                credentials, _ = google.auth.default(scopes=scopes, request=bounded)
            credentials.refresh(bounded)
    except google.auth.exceptions.DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise refused(_METHOD, "invalid credentials", "correct the file of GOOGLE_APPLICATION_CREDENTIALS") from None
        raise missing_credentials(_METHOD, _FIND) from None
    except (google.auth.exceptions.TransportError, google.auth.exceptions.TimeoutError) as error:
        raise unreachable(_METHOD, f"Google's token service cannot be reached ({type(error).__name__})") from None
    except google.auth.exceptions.RefreshError as error:
        raise _refusal(error) from None
    principal = parse_options(config.value(CONFIG)).get("principal") or _principal(credentials)
    expires_at_s = credentials.expiry.replace(tzinfo=UTC).timestamp()
    return Token(_kafka_token(credentials.token, principal, expires_at_s), expires_at_s)


def _kafka_token(access_token: str, principal: str, expires_at_s: float) -> str:
    header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = {"exp": expires_at_s, "iat": time.time(), "iss": "Google", "scope": "kafka", "sub": principal}
    return ".".join(url64(part.encode()) for part in (json.dumps(header), json.dumps(claims), access_token))


def _principal(credentials: Any) -> str:
    principal = getattr(credentials, "service_account_email", None) or getattr(credentials, "account", None)
    # Credentials of a machine are called "default" until they were refreshed.
    if not principal or principal == "default":
        raise ConfigError(f"{CONFIG}: has no principal=EMAIL, and these credentials of Google do not name theirs: add it")
    return str(principal)


def _refusal(error: Any) -> MirrorError:
    if error.retryable:
        return unreachable(_METHOD, "Google's token service cannot issue a token now")
    # (message, response); the code of OAuth is public, the rest of the text is not shown.
    response = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], dict) else {}
    code = str(response.get("error", ""))
    remedy = "check that the key of the service account is not deleted and the clock is right, and its roles"
    return refused(_METHOD, code if PUBLIC_ERROR.fullmatch(code) else "refused", remedy)
