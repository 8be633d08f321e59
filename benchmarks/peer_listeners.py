"""Listeners of the two brokers for peers, where clusters are far away or connections are encrypted.

The benchmark itself always uses the plain listeners, without a relay: corpora are written and copies are checked there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.security.certificates import Authority

from benchmarks.link import SOURCE, TARGET, Link
from benchmarks.running_relay import HOST, Relay, running_relay
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener

NAME = "PEERS"


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
    """`relays`: those in front of far clusters, by side. Connections through them begin to work when `access` is called."""

    def __init__(self, relays: Mapping[str, Relay], tls: TlsFiles | None) -> None:
        self._relays, self._tls = relays, tls

    def of(self, side: str) -> tuple[Listener, ...]:
        """Return what the broker of one side has beside its plain listener; nothing where peers use that one."""
        relay = self._relays.get(side)
        if relay is None and self._tls is None:
            return ()
        protocol, properties = ("PLAINTEXT", {}) if self._tls is None else ("SSL", _tls_properties(self._tls))
        return (Listener(NAME, protocol, properties, advertised_port=None if relay is None else relay.port),)

    def access(self, source: LocalKafka, target: LocalKafka) -> Access:
        """Connect the relays to the running brokers, and return where peers reach them. Only once. Raises RelayError."""
        ca_file = None if self._tls is None else self._tls.ca
        return Access(self._address(SOURCE, source), self._address(TARGET, target), ca_file)

    def _address(self, side: str, node: LocalKafka) -> str:
        if not self.of(side):
            return node.bootstrap
        own = node.address_of(NAME)
        relay = self._relays.get(side)
        if relay is None:
            return own
        relay.connect_to(own)
        return f"{HOST}:{relay.port}"


@contextmanager
def peer_listeners(link: Link, folder: Path) -> Iterator[PeerListeners]:
    """Yield the listeners of a link, whose relays run until the block ends. `folder` is made for certificates.

    Raises GoBuildError, RelayError.
    """
    with ExitStack() as stack:
        relays = {side: stack.enter_context(running_relay(link.rtt_ms)) for side in link.far_sides}
        yield PeerListeners(relays, TlsFiles.made_in(folder) if link.tls else None)


def _tls_properties(tls: TlsFiles) -> dict[str, str]:
    return {
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls.keystore),
    }
