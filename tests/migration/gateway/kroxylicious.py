"""Kroxylicious, a real gateway, with the configuration that docs/how-to/gateway.md shows."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import yaml

from shallow_mirror.local_kafka import ports
from shallow_mirror.local_kafka.jars import JarSet, Module, jars_of, java_executable
from shallow_mirror.local_kafka.properties import SINGLE_NODE_ID
from shallow_mirror.local_kafka.server_process import ServerProcess

JARS = JarSet(
    name="kroxylicious-0.12.0",
    modules=(
        Module(organisation="io.kroxylicious", name="kroxylicious-runtime", version="0.12.0"),
        Module(organisation="org.apache.logging.log4j", name="log4j-slf4j2-impl", version="2.25.4"),
    ),
)
MAIN = Path(__file__).parent / "Gateway.java"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "gateway.md"
OPEN = "the gateway is open"
START_S = 60.0


class Gateway:
    """Closed at first. `address`: the bootstrap servers of clients, whichever cluster is behind it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._config, self._log = folder / "kroxylicious.yaml", folder / "kroxylicious.log"
        self._process = ServerProcess("the gateway", self._log)
        self._port = _free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def open(self, bootstrap: str) -> None:
        """Open it, or in another direction if it is open. Returns once clients can connect."""
        self.close()
        self._config.write_text(yaml.safe_dump(config(self.address, bootstrap)), encoding="utf-8")
        before = self._text().count(OPEN)
        classes = f"{jars_of(JARS)[0].parent}/*"
        self._process.launch([java_executable(), "-XX:TieredStopAtLevel=1", "-cp", classes, str(MAIN), str(self._config)])
        give_up_at_s = time.monotonic() + START_S
        while self._text().count(OPEN) == before:
            assert self._process.is_running(), self._text()
            assert time.monotonic() < give_up_at_s, self._text()
            time.sleep(0.02)

    def close(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def _text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""


def config(address: str, bootstrap: str) -> dict[str, Any]:
    """Return the configuration of the page with other addresses, and with the id of the only broker."""
    shown = re.search(r"```yaml\n(virtualClusters:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    document: dict[str, Any] = yaml.safe_load(shown[1])
    (cluster,) = document["virtualClusters"]
    cluster["targetCluster"]["bootstrapServers"] = bootstrap
    (clients,) = cluster["gateways"]
    nodes = clients["portIdentifiesNode"]
    nodes["bootstrapAddress"] = address
    nodes["nodeIdRanges"][0] |= {"start": SINGLE_NODE_ID, "end": SINGLE_NODE_ID}
    return document


def _free_port() -> int:
    """Return a port behind which that of the broker is free as well."""
    while True:
        (port,) = ports.free_ports(1)
        if ports._is_free(port + 1):
            return port
