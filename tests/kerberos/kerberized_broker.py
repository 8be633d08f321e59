"""A real broker with Kerberos, at listeners that differ in their service principal, beside one without security."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kerberos.realm import Realm
from tests.security.certificates import Authority

from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener

HOST = "127.0.0.1"
"""As the brokers of the tests advertise themselves. The DNS has another name for this address, localhost."""
CLIENT = "mirror"
SESSION_MS = 2_000


class KerberizedBroker:
    """`node` is to be started; the realm runs. Principals of services and of CLIENT are added to it.

    `more`: other listeners. `properties` and `java_options`: of the node, beside its own.

    Listeners: GSSAPI, SHORT (sessions of SESSION_MS), TLS, ALIAS (service `alias`, whose principal has the name of the address
    in the DNS) and STALE (service `stale`, whose key was changed after its keytab was made).
    """

    def __init__(
        self,
        folder: Path,
        realm: Realm,
        *,
        more: Sequence[Listener] = (),
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.realm = realm
        self.authority = Authority(folder, "ca")
        certificate = self.authority.signed("broker", (HOST,))
        tls = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate.keystore_file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.identity.certificate_file),
        }
        usual = _gssapi(realm, f"kafka/{HOST}")
        self.node = LocalKafka(
            folder / "node",
            listeners=(
                Listener("GSSAPI", "SASL_PLAINTEXT", usual),
                Listener("SHORT", "SASL_PLAINTEXT", usual | {"gssapi.connections.max.reauth.ms": str(SESSION_MS)}),
                Listener("TLS", "SASL_SSL", usual | tls),
                Listener("ALIAS", "SASL_PLAINTEXT", _gssapi(realm, "alias/localhost")),
                Listener("STALE", "SASL_PLAINTEXT", _gssapi(realm, f"stale/{HOST}")),
                *more,
            ),
            properties=properties,
            java_options=(f"-Djava.security.krb5.conf={realm.config_file}", *java_options),
        )
        realm.change_key(f"stale/{HOST}")
        self.client_keytab = new_client(realm, CLIENT)

    def properties(self, listener: str = "GSSAPI", /, **others: Any) -> dict[str, Any]:
        """Return properties of CLIENT, which is let in by its keytab. `others` win; None leaves one out."""
        properties = {
            "bootstrap.servers": self.node.address_of(listener),
            "security.protocol": "sasl_ssl" if listener == "TLS" else "sasl_plaintext",
            "ssl.ca.location": str(self.authority.identity.certificate_file) if listener == "TLS" else None,
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.principal": f"{CLIENT}@{self.realm.name}",
            "sasl.kerberos.keytab": str(self.client_keytab),
            **others,
        }
        return {name: value for name, value in properties.items() if value is not None}


def new_client(realm: Realm, principal: str, *options: str) -> Path:
    """Add a principal, with options of kadmin's addprinc; return its keytab."""
    realm.add(principal, *options)
    return realm.keytab(principal)


def _gssapi(realm: Realm, service: str) -> dict[str, str]:
    realm.add(service)
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true isInitiator=false"
    return {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": service.partition("/")[0],
        "gssapi.sasl.jaas.config": f'{module} keyTab="{realm.keytab(service)}" principal="{service}@{realm.name}";',
    }
