"""Client properties, secrets, TLS and SASL: authenticated connections."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.auth import secrets as secrets
    from shallow_mirror.broker.auth.client_config import ClientConfig as ClientConfig
    from shallow_mirror.broker.auth.client_properties import KNOWN as KNOWN, MECHANISMS as MECHANISMS
    from shallow_mirror.broker.auth.secrets import is_only_references as is_only_references
    from shallow_mirror.broker.auth.tls_settings import TlsSettings as TlsSettings, ca_file_context as ca_file_context
else:
    __getattr__, __dir__ = lazy_names(__name__)
