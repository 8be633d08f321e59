"""Two clusters with a listener for each way to sign in, the fakes of the tests that issue tokens, and clients for both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.kerberos.kerberized_broker import KerberizedBroker
from tests.kerberos.realm import Realm, client_config, missing_programs
from tests.security.cloud_sign_ins import ABSENT, GATED, CloudSignIns
from tests.security.sasl_listeners import (
    add_scram_users,
    oauth_java_options,
    oauth_listener,
    plain_listener,
    scram_properties,
)
from tests.security.token_endpoint import TokenEndpoint
from tests.security.token_gate import TokenGate

from benchmarks.comparison import JVM_OPTIONS, PROPERTIES
from benchmarks.copying import Clusters
from benchmarks.link import PLAIN, SIDES
from benchmarks.peer_listeners import peer_listeners
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.properties import Listener
from shallow_mirror.local_kafka.server_process import start_together, stop_together

METHODS = ("none", "plain", "scram", "gssapi", "oidc", "file", "aws_msk_iam", "azure", "google", "databricks")
"""`file`: a token in a file. `none`: no security."""

_TICKET_S = 3600
_USER, _PASSWORD = "mirror", "pa55-of-the-mirror"
_PASSWORD_VARIABLE = "BENCHMARK_PASSWORD"
_OAUTH_CLIENT, _OAUTH_SECRET = "oauth-client", "5ecret+of/the=client"


@dataclass(frozen=True, slots=True)
class SignedInClusters:
    clusters: Clusters
    _brokers: Sequence[KerberizedBroker]
    _gates: Sequence[dict[str, TokenGate]]
    _clouds: CloudSignIns

    def clients(self, method: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the client properties of source and target for one of METHODS."""
        source, target = (self._client(method, broker, gates) for broker, gates in zip(self._brokers, self._gates, strict=True))
        return source, target

    def _client(self, method: str, broker: KerberizedBroker, gates: dict[str, TokenGate]) -> dict[str, str]:
        if method == "none":
            return {"bootstrap.servers": broker.node.bootstrap}
        if method == "gssapi":
            return broker.properties()
        if method in gates:
            return {"bootstrap.servers": gates[method].address} | self._clouds.properties(method)
        if method in ("plain", "scram"):
            return {
                "bootstrap.servers": broker.node.address_of(method.upper()),
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "PLAIN" if method == "plain" else "SCRAM-SHA-512",
                "sasl.username": _USER,
                "sasl.password": f"${{env:{_PASSWORD_VARIABLE}}}",
            }
        return {"bootstrap.servers": broker.node.address_of("OAUTH")} | self._clouds.properties(method)


@contextmanager
def signed_in_clusters(folder: Path) -> Iterator[SignedInClusters]:
    """Yield running clusters. Mirrors that this process starts have what they need in their environment.

    Raises ConfigError where the KDC is not installed.
    """
    missing = missing_programs() + ([] if find_spec("gssapi") else ["the Python package gssapi"])
    if missing:
        raise ConfigError(
            f"sign-ins cannot be measured without {', '.join(missing)}: `make kdc` installs them, on Debian as root"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        realms = [
            stack.enter_context(Realm(folder / f"realm-{side}", f"{side.upper()}.TEST", lifetime_s=_TICKET_S)) for side in SIDES
        ]
        tokens = stack.enter_context(TokenEndpoint(folder, {_OAUTH_CLIENT: _OAUTH_SECRET}))
        tokens.lives_for_s = _TICKET_S
        clouds = stack.enter_context(CloudSignIns(folder / "clouds", tokens, _OAUTH_CLIENT))
        gates = [{method: clouds.gate(method) for method in GATED} for _ in SIDES]
        brokers = [
            KerberizedBroker(
                folder / side,
                realm,
                more=(
                    plain_listener("PLAIN", {_USER: _PASSWORD}),
                    Listener("SCRAM", "SASL_PLAINTEXT", scram_properties()),
                    oauth_listener("OAUTH", tokens),
                    *(Listener(method.upper(), "PLAINTEXT", advertised_port=gate.port) for method, gate in own_gates.items()),
                ),
                properties=PROPERTIES,
                java_options=(*JVM_OPTIONS, *oauth_java_options(tokens)),
            )
            for side, realm, own_gates in zip(SIDES, realms, gates, strict=True)
        ]
        nodes = [broker.node for broker in brokers]
        start_together(nodes)
        stack.callback(stop_together, nodes)
        for node, own_gates in zip(nodes, gates, strict=True):
            add_scram_users(node.bootstrap, {_USER: _PASSWORD})
            for method, gate in own_gates.items():
                gate.connect(node.address_of(method.upper()))
        config = folder / "krb5.conf"
        config.write_text(client_config(realms), encoding="utf-8")
        _set_environment({"KRB5_CONFIG": str(config), _PASSWORD_VARIABLE: _PASSWORD} | clouds.environment)
        listeners = stack.enter_context(peer_listeners((PLAIN,), folder / "certificates"))
        yield SignedInClusters(Clusters(nodes[0], nodes[1], listeners, PLAIN), brokers, gates, clouds)


def _set_environment(variables: dict[str, str]) -> None:
    for name in ABSENT:
        os.environ.pop(name, None)
    os.environ |= variables
