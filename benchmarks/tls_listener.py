"""A TLS listener for the brokers of a benchmark, with a certificate that is made on the spot, and clients of it."""

from __future__ import annotations

from pathlib import Path

from tests.security.certificates import Authority

from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.properties import Listener

_NAME = "TLS"


class TlsListener:
    """The same for all clusters of a benchmark: give `listener` to their nodes. `folder`: for its certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "ca")
        self.identity = self.authority.signed("broker", ("127.0.0.1",))
        self.listener = Listener(
            _NAME, "SSL", {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.identity.keystore_file)}
        )

    def properties(self, node: LocalKafka) -> dict[str, str]:
        """Return client properties."""
        return {
            "bootstrap.servers": node.address_of(_NAME),
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority.identity.certificate_file),
        }
