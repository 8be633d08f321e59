"""Everywhere: tokens of Microsoft Entra ID, for Event Hubs and other clusters that accept them, by azure-identity."""

from __future__ import annotations

import os
import re
from typing import Any

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import PREFIX, event_hubs_scope
from shallow_mirror.broker.auth.tokens.credentials import missing_credentials, missing_library, refused, unreachable
from shallow_mirror.broker.auth.tokens.refusals import may_pass
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import MirrorError

_METHOD = "azure"
_TIMEOUT_S = 5
_LIMITS = {"connection_timeout": _TIMEOUT_S, "read_timeout": _TIMEOUT_S, "retry_total": 0}
_FIND = (
    "assign a managed identity to the machine, use workload identity (AZURE_FEDERATED_TOKEN_FILE), or set AZURE_TENANT_ID, "
    "AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
)
_CORRECT = f"correct {PREFIX}scope and {PREFIX}client.id, or the credentials of the environment (AZURE_*)"


def token_of_azure(config: ClientConfig, credential: Any = None) -> Token:
    """Return a token for the scope of the properties, or of the Event Hubs namespace.

    `credential`: of azure-identity; None: the one that the environment names.
    """
    try:
        import azure.core.exceptions
        from azure.identity import CredentialUnavailableError
    except ImportError:
        raise missing_library(_METHOD, "azure-identity", "azure") from None
    scope = config.value(PREFIX + "scope") or event_hubs_scope(config.value("bootstrap.servers"))
    try:
        found = (credential or _credential(config.value(PREFIX + "client.id"))).get_token(scope)
    except CredentialUnavailableError:
        raise missing_credentials(_METHOD, _FIND) from None
    except (azure.core.exceptions.ServiceRequestError, azure.core.exceptions.ServiceResponseError) as error:
        raise unreachable(_METHOD, f"Entra ID or the metadata service cannot be reached ({type(error).__name__})") from None
    except azure.core.exceptions.HttpResponseError as error:
        raise _refusal(error) from None
    except ValueError:
        # A tenant or client id that is missing or malformed; the text may repeat what was written.
        raise refused(_METHOD, "invalid credentials", _CORRECT) from None
    return Token(found.token, float(found.expires_on))


def _credential(client_id: str) -> Any:
    # One credential, not DefaultAzureCredential's chain, which reports every failure, also of the network, as refused.
    from azure.identity import EnvironmentCredential, ManagedIdentityCredential, WorkloadIdentityCredential

    if os.environ.get("AZURE_FEDERATED_TOKEN_FILE"):
        return WorkloadIdentityCredential(**({"client_id": client_id} if client_id else {}), **_LIMITS)
    if os.environ.get("AZURE_CLIENT_SECRET") or os.environ.get("AZURE_CLIENT_CERTIFICATE_PATH"):
        return EnvironmentCredential(**_LIMITS)
    return ManagedIdentityCredential(**({"client_id": client_id} if client_id else {}), **_LIMITS)


def _refusal(error: Any) -> MirrorError:
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and may_pass(status):
        return unreachable(_METHOD, f"Entra ID or the metadata service answered {status}")
    # Entra's error numbers are public; the text beside them repeats ids, and may repeat more.
    number = re.search(r"AADSTS\d{4,7}", str(error))
    return refused(_METHOD, " ".join(str(part) for part in (status, number and number[0]) if part) or "refused", _CORRECT)
