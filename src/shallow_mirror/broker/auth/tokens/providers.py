"""Everywhere: bearer tokens of the clouds' own libraries, and their errors."""

from __future__ import annotations

import logging
from collections.abc import Callable

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import METHOD
from shallow_mirror.broker.auth.tokens import azure, databricks, google, msk
from shallow_mirror.broker.auth.tokens.credentials import CredentialsMissingError, unreachable
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import ConfigError, MirrorError

_FETCHES: dict[str, Callable[[ClientConfig], Token]] = {
    "aws_msk_iam": msk.token_of_msk,
    "azure": azure.token_of_azure,
    "google": google.token_of_google,
    "databricks": databricks.token_of_databricks,
}


_LIBRARIES = ("azure", "boto3", "botocore", "google", "msal", "requests", "urllib3")
"""Names of their loggers. Below INFO they log requests and responses, with credentials in them, and at INFO every request."""

_REPEATING = "azure.identity"
"""Its warnings repeat the errors that it raises."""


def provider_of(config: ClientConfig) -> Provider:
    """Return the provider of `sasl.oauthbearer.method`."""
    method = config.value(METHOD).lower()
    for name, level in {**dict.fromkeys(_LIBRARIES, logging.WARNING), _REPEATING: logging.ERROR}.items():
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < level:
            logger.setLevel(level)
    return Provider(method, lambda: _FETCHES[method](config))


class Provider:
    """The library of one cloud. A call may take longer than any timeout of ours."""

    def __init__(self, method: str, fetch: Callable[[], Token]) -> None:
        self._method, self._fetch = method, fetch
        self._has_succeeded = False

    def token(self) -> Token:
        """Return a new token. Raises ConfigError where credentials are refused or missing, RetriableError."""
        try:
            token = self._fetch()
        except CredentialsMissingError as error:
            # The metadata service of a machine may be unavailable for a moment: a mirror that had a token waits for it.
            if self._has_succeeded:
                raise unreachable(self._method, str(error)) from None
            raise ConfigError(error.problems) from None
        except MirrorError:
            raise
        except OSError as error:
            raise unreachable(self._method, type(error).__name__) from None
        except Exception as error:  # noqa: BLE001 - of a library; its text may hold a secret
            raise ConfigError(
                f"{METHOD}: {self._method}: its library raised {type(error).__name__}: check version and credentials"
            ) from None
        self._has_succeeded = True
        return token
