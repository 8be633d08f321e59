"""The ZooKeeper of a broker before Kafka 3.3, for this one broker alone. Runs on the driver and in tests."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from shallow_mirror.local_kafka.properties import properties_text, zookeeper_properties

_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_LISTED = "Sessions with Ephemerals"
_REGISTERED_BROKER = re.compile(r"^\s+/brokers/ids/", re.MULTILINE)


def zookeeper_command(folder: Path, port: int) -> list[str]:
    """What follows `java` to run one that keeps its data in `folder`; writes its configuration there."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "zookeeper.properties"
    config.write_text(properties_text(zookeeper_properties(port, folder / "data")), encoding="utf-8")
    return [_MAIN_CLASS, str(config)]


def is_ready_for_a_broker(port: int) -> bool:
    """Whether ZooKeeper answers and no broker is registered: one that was killed is, until its session has ended."""
    dump = _ask(port, b"dump")
    return _LISTED in dump and not _REGISTERED_BROKER.search(dump)


def _ask(port: int, word: bytes) -> str:
    """The answer to a four-letter word, empty while nobody gives one."""
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(word)
            while piece := connection.recv(1 << 16):
                answer += piece
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")
