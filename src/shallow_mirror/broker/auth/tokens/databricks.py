"""Everywhere: tokens by service credentials of Databricks' Unity Catalog, for clusters of AWS, Azure and Google."""

from __future__ import annotations

from typing import Any

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import (
    CONFIG,
    METHOD,
    PREFIX as _PREFIX,
    event_hubs_scope,
    msk_region,
    parse_options,
)
from shallow_mirror.broker.auth.tokens.azure import token_of_azure
from shallow_mirror.broker.auth.tokens.google import token_of_google
from shallow_mirror.broker.auth.tokens.msk import token_of_msk
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import ConfigError, MirrorError

_METHOD = "databricks"


def token_of_databricks(config: ClientConfig) -> Token:
    """Return a token by the credential that `credential=NAME` names. The kind of the credential decides on the kind of token."""
    options = parse_options(config.value(CONFIG))
    credential = _service_credential(options["credential"])
    if hasattr(credential, "get_token"):
        if not (config.value(_PREFIX + "scope") or event_hubs_scope(config.value("bootstrap.servers"))):
            raise ConfigError(f"{_PREFIX}scope: is missing for a service credential of Azure: set APPLICATION_ID_URI/.default")
        return token_of_azure(config, credential)
    if hasattr(credential, "get_credentials"):
        if not (options.get("region") or msk_region(config.value("bootstrap.servers"))):
            raise ConfigError(f"{CONFIG}: has no region=REGION for a service credential of AWS: add it")
        return token_of_msk(config, credential)
    if hasattr(credential, "refresh"):
        return token_of_google(config, credential)
    raise ConfigError(f"{METHOD}: {_METHOD}: service credentials of this kind ({type(credential).__name__}) are not supported")


def _service_credential(name: str) -> Any:
    try:
        return _provider()(name)
    except MirrorError:
        raise
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a runtime, its REST client or py4j raises; the text is not shown
        raise ConfigError(
            f"{METHOD}: {_METHOD}: the service credential {name} cannot be used here ({type(error).__name__}): check its name "
            "and the privilege ACCESS on it"
        ) from None


def _provider() -> Any:
    """Return the function of the runtime: a module on executors, a part of dbutils on the driver."""
    try:
        from databricks.service_credentials import getServiceCredentialsProvider
    except ImportError:
        pass
    else:
        return getServiceCredentialsProvider
    try:
        from databricks.sdk.runtime import dbutils

        return dbutils.credentials.getServiceCredentialsProvider
    except (ImportError, AttributeError):
        raise ConfigError(
            f"{METHOD}: {_METHOD} needs a runtime of Databricks with service credentials of Unity Catalog; elsewhere use "
            "aws_msk_iam, azure or google"
        ) from None
