"""Free ports for local brokers, and what it means when they are not. Runs on the driver, in tests and benchmarks."""

from __future__ import annotations

import random
import socket

from shallow_mirror.errors import MirrorError

# Below the ports which operating systems give to outgoing connections: a client that reconnects to a stopped broker
# could otherwise be given the broker's own port and keep it from restarting.
PORT_RANGE = (20000, 32000)


class BrokerNotStarted(MirrorError):
    """The broker did not come up; the end of its log is in the message. Nothing of it is left running."""


class PortTaken(BrokerNotStarted):
    """Somebody else was faster at the chosen ports."""


def free_ports(count: int, rng: random.Random | None = None) -> list[int]:
    """Ports nobody listens on at this moment; another process may be faster, so starting is retried."""
    rng = random.SystemRandom() if rng is None else rng
    found: list[int] = []
    for port in rng.sample(range(*PORT_RANGE), 1000):
        if _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise BrokerNotStarted(f"no {count} free ports among 1000 tried between {PORT_RANGE[0]} and {PORT_RANGE[1]}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
