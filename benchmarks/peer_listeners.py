"""Listeners of the two brokers for peers, where clusters are far away or connections are encrypted.

The benchmark itself always uses the plain listeners, without a relay: corpora are written and copies are checked there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.security.certificates import Authority

from benchmarks.link import SOURCE, TARGET, Link
from benchmarks.running_relay import HOST, Relay, running_relay
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener

NAME = "PEERS"
"""Of the listener that peers use near."""
FAR_NAME = "FARPEERS"
"""Of the one behind a relay."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where peers reach the clusters: `host:port`. `ca_file`: the CA of both certificates, PEM; None: without TLS."""

    source: str
    target: str
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: what clients trust, and the certificate of both brokers with its key."""

    ca: Path
    keystore: Path

    @classmethod
    def made_in(cls, folder: Path) -> TlsFiles:
        folder.mkdir(parents=True)
        authority = Authority(folder, "ca")
        return cls(authority.identity.certificate_file, authority.signed("broker", (HOST,)).keystore_file)


class PeerListeners:
    """`relays`: those in front of far clusters, by side. Connections through them begin to work when `connect` is called."""

    def __init__(self, relays: Mapping[str, Relay], tls: TlsFiles | None) -> None:
        self._relays, self._tls = relays, tls

    def of(self, side: str) -> tuple[Listener, ...]:
        """Return what the broker of one side has beside its plain listener, which peers use near and without TLS."""
        relay = self._relays.get(side)
        protocol, properties = ("PLAINTEXT", {}) if self._tls is None else ("SSL", _tls_properties(self._tls))
        near = () if self._tls is None else (Listener(NAME, protocol, properties),)
        far = () if relay is None else (Listener(FAR_NAME, protocol, properties, advertised_port=relay.port),)
        return (*near, *far)

    def connect(self, source: LocalKafka, target: LocalKafka) -> None:
        """Connect the relays to the running brokers. Only once. Raises RelayError."""
        for side, relay in self._relays.items():
            relay.connect_to((source if side == SOURCE else target).address_of(FAR_NAME))

    def set_distance(self, link: Link) -> None:
        """Let the far clusters of a link be as far away as it says. After `connect`. Raises RelayError."""
        for side in link.far_sides:
            self._relays[side].set_round_trip(link.rtt_ms)

    def access(self, link: Link, source: LocalKafka, target: LocalKafka) -> Access:
        """Return where peers reach the brokers over a link: one of those that these listeners are for."""
        ca_file = None if self._tls is None else self._tls.ca
        return Access(self._address(link, SOURCE, source), self._address(link, TARGET, target), ca_file)

    def _address(self, link: Link, side: str, node: LocalKafka) -> str:
        if side in link.far_sides:
            return f"{HOST}:{self._relays[side].port}"
        return node.bootstrap if self._tls is None else node.address_of(NAME)


@contextmanager
def peer_listeners(links: Sequence[Link], folder: Path) -> Iterator[PeerListeners]:
    """Yield the listeners of links that are all or none with TLS, whose relays run until the block ends.

    `folder` is made for certificates. Raises GoBuildError, RelayError.
    """
    with ExitStack() as stack:
        sides = dict.fromkeys(side for link in links for side in link.far_sides)
        relays = {side: stack.enter_context(running_relay(links[0].rtt_ms)) for side in sides}
        yield PeerListeners(relays, TlsFiles.made_in(folder) if any(link.tls for link in links) else None)


def _tls_properties(tls: TlsFiles) -> dict[str, str]:
    return {
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls.keystore),
    }
