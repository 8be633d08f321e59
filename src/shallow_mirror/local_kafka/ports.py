"""Driver: free ports for local brokers, and the errors of taken ones."""

from __future__ import annotations

import logging
import random
import socket
from pathlib import Path

from shallow_mirror.errors import ConfigError, MirrorError

# Below the ports which operating systems give to outgoing connections: a client that reconnects to a stopped broker
# could otherwise be given the broker's own port and keep it from restarting.
PORT_RANGE = (20000, 32000)

_log = logging.getLogger(__name__)


class BrokerStartError(MirrorError):
    """The broker did not start; the end of its log is in the message. No process of it is left running."""


class PortTakenError(BrokerStartError):
    """Another process has taken the chosen ports."""


def free_ports(count: int, rng: random.Random | None = None) -> list[int]:
    """Return ports that are free at this moment; another process may be faster, so starting is retried."""
    rng = random.SystemRandom() if rng is None else rng
    ports: list[int] = []
    for port in rng.sample(range(*PORT_RANGE), 1000):
        if _is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise BrokerStartError(f"no {count} free ports among 1000 tried between {PORT_RANGE[0]} and {PORT_RANGE[1]}")


class KeptPorts:
    """Chooses the ports that a file names if they are free, else others, and keeps those of a start that succeeded."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept, self._chosen = self._read(), list[int]()

    def choose(self, count: int) -> list[int]:
        """Return ports; other ones when called again, because a port that looked free was not."""
        is_usable = not self._chosen and len(self._kept) == count and all(_is_free(port) for port in self._kept)
        self._chosen = self._kept if is_usable else free_ports(count)
        if self._kept and not is_usable:
            _log.warning("%s: the ports of the last start cannot be used again: there are new addresses", self._file.parent)
        return self._chosen

    def keep(self) -> None:
        """Keep the ports of a start that succeeded."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text("".join(f"{port}\n" for port in self._chosen), encoding="utf-8")
        temporary.replace(self._file)

    def _read(self) -> list[int]:
        if not self._file.is_file():
            return []
        try:
            return [int(line) for line in self._file.read_text(encoding="utf-8").splitlines()]
        except ValueError as error:
            raise ConfigError(f"{self._file} contains something other than ports: delete it") from error


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
