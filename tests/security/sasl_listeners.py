"""Listeners of brokers with SASL and without TLS, and the users of SCRAM."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests.security.token_endpoint import AUDIENCE, ISSUER, TokenEndpoint
from tests.support.mirror_runs import admin

from shallow_mirror.local_kafka.properties import Listener

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")

_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


def scram_properties() -> dict[str, str]:
    """Return properties of a listener, also of one with TLS."""
    modules = {f"{mechanism.lower()}.sasl.jaas.config": _SCRAM_MODULE for mechanism in SCRAM}
    return {"sasl.enabled.mechanisms": ",".join(SCRAM)} | modules


def plain_listener(name: str, passwords: Mapping[str, str]) -> Listener:
    """Return a listener with the mechanism PLAIN. `passwords`: by user."""
    users = " ".join(f'user_{user}="{password}"' for user, password in passwords.items())
    properties = {"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": f"{_PLAIN_MODULE} {users};"}
    return Listener(name, "SASL_PLAINTEXT", properties)


def oauth_listener(name: str, tokens: TokenEndpoint) -> Listener:
    """Return a listener that verifies JWTs of `tokens`. The broker needs `oauth_java_options`."""
    properties = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "oauthbearer.sasl.jaas.config": _OAUTH_MODULE,
        "oauthbearer.sasl.server.callback.handler.class": _OAUTH_HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": tokens.jwks_file.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,  # required since 4.4.0
    }
    return Listener(name, "SASL_PLAINTEXT", properties)


def oauth_java_options(tokens: TokenEndpoint) -> tuple[str, ...]:
    """Return options of Java that let a broker read the keys of `tokens`."""
    return (
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={tokens.jwks_file.as_uri()}",
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={tokens.jwks_file}",
    )


def add_scram_users(bootstrap: str, passwords: Mapping[str, str]) -> None:
    """Add users, or change their passwords. `bootstrap`: of a listener that lets administrators in."""
    client = admin(bootstrap)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for user, password in passwords.items()
        ]
        for future in client.alter_user_scram_credentials(wanted).values():
            future.result(30)
