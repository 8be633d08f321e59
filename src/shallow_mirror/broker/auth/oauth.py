"""Everywhere: bearer tokens for OAUTHBEARER, kept until they have to be renewed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import METADATA, METHOD, PREFIX, URL, is_file_url
from shallow_mirror.broker.auth.tokens import providers
from shallow_mirror.broker.auth.tokens.callback import token_of_callable
from shallow_mirror.broker.auth.tokens.token import Token, claims_of, extensions_of
from shallow_mirror.broker.auth.tokens.token_endpoint import token_of_azure_imds, token_of_endpoint
from shallow_mirror.broker.auth.tokens.token_file import token_of_file
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError

_USED_FOR = 0.8
"""Share of a token's lifetime: a broker must still accept the token when it arrives there, and for some time after."""

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


class UncachedToken:
    """A token source that is cheap: a file, which another process may have renewed a moment ago."""

    def __init__(self, fetch: Callable[[Deadline], Token]) -> None:
        self.token = fetch


def token_source(config: ClientConfig) -> TokenSource:
    """Return the source that the properties name. No request is sent yet."""
    method = config.value(METHOD).lower()
    if method == "oidc" and is_file_url(config.value(URL)):
        return UncachedToken(lambda _: _checked(config, token_of_file(config.value(URL))))
    if method == "oidc":
        is_imds = config.value(METADATA).lower() == "azure_imds"
        fetch = token_of_azure_imds if is_imds else token_of_endpoint
        return CachedToken(lambda deadline: _checked(config, fetch(config, deadline)))
    if method in ("", "default"):
        return CachedToken(lambda _: _checked(config, token_of_callable(config)))
    provider = providers.provider_of(config)
    return CachedToken(lambda deadline: _checked(config, provider.token(deadline)))


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
