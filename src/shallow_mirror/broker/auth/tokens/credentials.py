"""Everywhere: what the clouds' modules share: how a missing library and missing credentials are reported. Pure."""

from __future__ import annotations

from shallow_mirror.broker.auth.oauth_properties import METHOD
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

PROVIDER_UNREACHABLE = "TOKEN_PROVIDER_UNREACHABLE"


class CredentialsMissingError(ConfigError):
    """No credentials were found on this machine. Nothing was refused."""


def missing_library(method: str, package: str, extra: str) -> ConfigError:
    """Return the error of a library that is not installed."""
    return ConfigError(
        f"{METHOD}: {method} needs the package {package} on driver and executors: pip install 'shallow-mirror[{extra}]'"
    )


def missing_credentials(method: str, remedy: str) -> MirrorError:
    """Return the error of a machine without credentials."""
    return CredentialsMissingError(f"{METHOD}: {method} found no credentials on this machine: {remedy}")


def refused(method: str, reason: str, remedy: str) -> MirrorError:
    """Return the error of refused credentials. They are not sent again: providers lock accounts."""
    return ConfigError(f"{METHOD}: {method}: no token was issued ({reason}): {remedy}")


def unreachable(method: str, reason: str) -> MirrorError:
    """Return the error of a provider that may answer later."""
    return RetriableError(PROVIDER_UNREACHABLE, f"{METHOD}: {method}: {reason}")
