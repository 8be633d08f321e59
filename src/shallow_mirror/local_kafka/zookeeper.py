"""Driver: the ZooKeeper of a broker before Kafka 3.3, for this broker alone."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from shallow_mirror.local_kafka.properties import properties_text, zookeeper_properties

_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_LISTED = "Sessions with Ephemerals"
_REGISTERED_BROKER = re.compile(r"^\s+/brokers/ids/", re.MULTILINE)


def zookeeper_command(folder: Path, port: int) -> list[str]:
    """Return the arguments of `java` for a ZooKeeper with its data in `folder`; write its configuration there."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "zookeeper.properties"
    config.write_text(properties_text(zookeeper_properties(port, folder / "data")), encoding="utf-8")
    return [_MAIN_CLASS, str(config)]


def is_ready_for_a_broker(port: int) -> bool:
    """Return whether ZooKeeper answers and no broker is registered: a killed one is, until its session has ended."""
    dump = _ask(port, b"dump")
    return _LISTED in dump and not _REGISTERED_BROKER.search(dump)


def _ask(port: int, word: bytes) -> str:
    """Return the answer to a four-letter word, empty while there is none."""
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(word)
            while piece := connection.recv(1 << 16):
                answer += piece
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")
