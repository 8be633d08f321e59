"""Everywhere: bearer tokens for OAUTHBEARER, kept until they have to be renewed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import METADATA, METHOD, PREFIX, URL, is_file_url
from shallow_mirror.broker.auth.renewed_credential import Lease, RenewedCredential
from shallow_mirror.broker.auth.tokens.callback import CALLBACK_FAILED, token_of_callable
from shallow_mirror.broker.auth.tokens.credentials import PROVIDER_UNREACHABLE
from shallow_mirror.broker.auth.tokens.providers import provider_of
from shallow_mirror.broker.auth.tokens.token import TOKEN_TIMEOUT_S, Token, claims_of, extensions_of
from shallow_mirror.broker.auth.tokens.token_endpoint import IMDS_URL, no_answer, token_of_azure_imds, token_of_endpoint
from shallow_mirror.broker.auth.tokens.token_file import token_of_file
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

_RENEWED_AT, _USED_FOR = 0.8, 0.95
"""Shares of a token's lifetime: a broker must still accept the token when it arrives there, and for some time after."""

_SUB_CLAIM = PREFIX + "sub.claim.name"


_REMEDIES = {
    "aws_msk_iam": "check region and role, and that its policy allows kafka-cluster:Connect on this cluster",
    "azure": "check sasl.oauthbearer.scope, the role of this identity (Azure Event Hubs Data Receiver or Owner), and the clock",
    "google": "check that this account has the role Managed Kafka Client (roles/managedkafka.client), and the clock",
    "databricks": "check the privileges of the service credential on this cluster",
}


class TokenSource(Protocol):
    def token(self, deadline: Deadline) -> Token:
        """Return a token that is valid now. Raises ConfigError, RetriableError."""

    def kept(self) -> Token | None:
        """Return the token of an earlier request that is used without another one; None if there is none."""

    def drop(self, token: Token) -> None:
        """Do not use a kept token any longer; no effect if there is another one by now."""


class RenewedToken:
    """A token source that fetches in the background while the last token is valid."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Token],
        late: Callable[[], RetriableError],
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`name`: of the source, for the log. `late`: the error of a connection that waited for TOKEN_TIMEOUT_S."""
        self._fetch, self._now_s = fetch, now_s
        self._token = RenewedCredential(f"the token of {name}", self._lease, late=late, clock=now_s, timeout_s=TOKEN_TIMEOUT_S)

    def token(self, deadline: Deadline) -> Token:
        return self._token.get(deadline)

    def kept(self) -> Token | None:
        return self._token.kept()

    def drop(self, token: Token) -> None:
        self._token.drop(token)

    def _lease(self) -> Lease[Token]:
        now = self._now_s()
        token = self._fetch()
        lives_for_s = token.expires_at_s - now
        return Lease(token, now + lives_for_s * _RENEWED_AT, now + lives_for_s * _USED_FOR)


class UncachedToken:
    """A token source that is cheap: a file, which another process may have renewed a moment ago."""

    def __init__(self, fetch: Callable[[Deadline], Token]) -> None:
        self.token = fetch

    def kept(self) -> None:
        return None

    def drop(self, token: Token) -> None:
        """Do nothing: no token is kept."""


def token_source(config: ClientConfig) -> TokenSource:
    """Return the source that the properties name. No request is sent yet."""
    method = config.value(METHOD).lower()
    if method == "oidc" and is_file_url(config.value(URL)):
        return UncachedToken(lambda _: _checked(config, token_of_file(config.value(URL))))
    if method == "oidc":
        is_imds = config.value(METADATA).lower() == "azure_imds"
        request = token_of_azure_imds if is_imds else token_of_endpoint
        url = config.value(URL) or IMDS_URL
        return RenewedToken(url, lambda: _checked(config, request(config)), lambda: no_answer(url))
    if method in ("", "default"):
        name, error_name = f"oauth_cb: {config.value('oauth_cb')}", CALLBACK_FAILED
        fetch: Callable[[], Token] = partial(token_of_callable, config)
    else:
        name, error_name = f"{METHOD}: {method}", PROVIDER_UNREACHABLE
        fetch = provider_of(config).token
    late = f"{name} returned no token within {TOKEN_TIMEOUT_S:g} s"
    return RenewedToken(name, lambda: _checked(config, fetch()), lambda: RetriableError(error_name, late))


def refusal_remedy(config: ClientConfig) -> str:
    """Return what to check where a broker refuses a token."""
    default = "check scope and audience of the token, its expiry, and sasl.oauthbearer.expected.* of the broker"
    return _REMEDIES.get(config.value(METHOD).lower(), default)


def _checked(config: ClientConfig, token: Token) -> Token:
    """Return the token with the extensions of the properties. Raises ConfigError where it lacks the claim of the subject."""
    name = config.value(_SUB_CLAIM)
    if name:
        try:
            subject = claims_of(token.value)[name]
        except (ValueError, KeyError):
            subject = None
        if not (isinstance(subject, str) and subject.strip()):
            raise ConfigError(f"{_SUB_CLAIM}: the token has no claim {name}: correct the name, or remove the property")
    return replace(token, extensions={**extensions_of(config.value(PREFIX + "extensions")), **token.extensions})
