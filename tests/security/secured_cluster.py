"""One real broker that speaks every security protocol, each at a listener of its own, and asks for rights (ACLs)."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from tests.security.certificates import DAY, NOW, Authority, Identity
from tests.security.sasl_listeners import (
    SCRAM,
    add_scram_users,
    oauth_java_options,
    oauth_listener,
    plain_listener,
    scram_properties,
)
from tests.security.token_endpoint import TokenEndpoint
from tests.support.mirror_runs import admin

from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener

USER, PASSWORD = "mirror,=user", "pa55-of-the-mirror"
POOR_USER, POOR_PASSWORD = "poor", "pa55-of-the-poor"
PLAIN_USER, PLAIN_PASSWORD = "plain", "pa55-in-the-plain"
CLIENT_ID, CLIENT_SECRET = "oauth-client", "5ecret+of/the=client"
KEY_PASSWORD = "pa55-of-the-key"
SESSION_MS = 2_000


class Right(NamedTuple):
    """What docs/reference/acls.md lists: an operation on a resource, by its name or by how its name begins."""

    operation: str
    resource: str
    name: str
    is_prefix: bool = False

    def _as_acl(self, user: str) -> tuple[Any, ...]:
        return (
            ResourceType[self.resource],
            self.name,
            ResourcePatternType.PREFIXED if self.is_prefix else ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[self.operation],
            AclPermissionType.ALLOW,
        )

    def binding(self, user: str) -> AclBinding:
        return AclBinding(*self._as_acl(user))

    def filter(self, user: str) -> AclBindingFilter:
        return AclBindingFilter(*self._as_acl(user))


class SecuredCluster:
    """Context manager. Addresses by listener: TLS, EXPIRED, ELSEWHERE (a certificate of another host), MUTUAL (asks for a client
    certificate), SCRAM (TLS, and a client certificate if there is one), PLAIN, OAUTH and SHORT (SCRAM without TLS, sessions of SESSION_MS)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority, self.stranger = Authority(folder, "ca"), Authority(folder, "stranger-ca")
        self.client = self.authority.signed("client")
        self.strange_client = self.stranger.signed("strange-client")
        self.expired_client = self.authority.signed("expired-client", ends=NOW - DAY)
        here = self.authority.signed("broker", ("127.0.0.1", "localhost"))
        expired = self.authority.signed("expired-broker", ("127.0.0.1",), ends=NOW - DAY)
        elsewhere = self.authority.signed("elsewhere", ("kafka.example.org",))
        self.tokens = TokenEndpoint(folder, {CLIENT_ID: CLIENT_SECRET})
        listeners = (
            Listener("TLS", "SSL", self._tls(here)),
            Listener("EXPIRED", "SSL", self._tls(expired)),
            Listener("ELSEWHERE", "SSL", self._tls(elsewhere)),
            Listener("MUTUAL", "SSL", self._tls(here) | {"ssl.client.auth": "required"}),
            Listener("SCRAM", "SASL_SSL", self._tls(here) | scram_properties() | {"ssl.client.auth": "requested"}),
            Listener(
                "SHORT",
                "SASL_PLAINTEXT",
                scram_properties() | {f"{mechanism.lower()}.connections.max.reauth.ms": str(SESSION_MS) for mechanism in SCRAM},
            ),
            plain_listener("PLAIN", {PLAIN_USER: PLAIN_PASSWORD, POOR_USER: POOR_PASSWORD}),
            oauth_listener("OAUTH", self.tokens),
        )
        self.node = LocalKafka(
            folder / "node",
            listeners=listeners,
            properties={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:ANONYMOUS;User:{USER};User:{PLAIN_USER};User:{CLIENT_ID};User:CN=client",
            },
            java_options=oauth_java_options(self.tokens),
        )

    def _tls(self, identity: Identity) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(identity.keystore_file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.identity.certificate_file),
        }

    def __enter__(self) -> Self:
        self.tokens.__enter__()
        try:
            self.node.start()
            add_scram_users(self.bootstrap, {USER: PASSWORD, POOR_USER: POOR_PASSWORD})
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.node.stop()
        self.tokens.__exit__(None, None, None)

    @property
    def bootstrap(self) -> str:
        """Without security, as super user."""
        return self.node.bootstrap

    def address_of(self, listener: str) -> str:
        return self.node.address_of(listener)

    def properties(self, listener: str, **others: Any) -> dict[str, Any]:
        """Of a client that is let in there. `others` win; None leaves one out."""
        ca = {"ssl.ca.location": str(self.authority.identity.certificate_file)}
        scram = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": USER, "sasl.password": PASSWORD}
        files = {"ssl.certificate.location": str(self.client.certificate_file), "ssl.key.location": str(self.client.key_file)}
        by_listener: dict[str, dict[str, Any]] = {
            "TLS": {"security.protocol": "ssl"} | ca,
            "EXPIRED": {"security.protocol": "ssl"} | ca,
            "ELSEWHERE": {"security.protocol": "ssl"} | ca,
            "MUTUAL": {"security.protocol": "ssl"} | ca | files,
            "SCRAM": {"security.protocol": "sasl_ssl"} | ca | scram,
            "SHORT": {"security.protocol": "sasl_plaintext"} | scram,
            "PLAIN": {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN",
                "sasl.username": PLAIN_USER,
                "sasl.password": PLAIN_PASSWORD,
            },
            "OAUTH": {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
                "sasl.oauthbearer.client.id": CLIENT_ID,
                "sasl.oauthbearer.client.secret": CLIENT_SECRET,
                "sasl.oauthbearer.scope": "mirror",
            },
        }
        properties = {"bootstrap.servers": self.address_of(listener), **by_listener[listener], **others}
        return {name: value for name, value in properties.items() if value is not None}

    def grant(self, *rights: Right, user: str = POOR_USER) -> None:
        client = admin(self.bootstrap)
        for future in client.create_acls([right.binding(user) for right in rights]).values():
            future.result(30)

    def revoke(self, *rights: Right, user: str = POOR_USER) -> None:
        client = admin(self.bootstrap)
        for future in client.delete_acls([right.filter(user) for right in rights]).values():
            future.result(30)
