"""Apicurio Registry 2.6 with its Confluent API, in memory: a real registry that runs on Java 17, without import mode.

Its archive is fetched once into the cache folder of the jars (142 MB) and unpacked there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import tarfile
import time
import urllib.parse
from pathlib import Path
from typing import Any, Self

from shallow_mirror.local_kafka import cache_folder
from shallow_mirror.local_kafka.jars import JarSet, Module, jars_of, java_executable
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.local_kafka.server_process import ServerProcess

VERSION = "2.6.13.Final"

_HOST = "127.0.0.1"
_API = "/apis/ccompat/v7"
_START_TIMEOUT_S = 60.0
_ARCHIVE = Module(
    organisation="io.apicurio",
    name="apicurio-registry-app",
    version=VERSION,
    transitive=False,
    classifier="all",
    extension="tar.gz",
)
_ARCHIVE_SET = JarSet(name=f"apicurio-registry-{VERSION}", modules=(_ARCHIVE,))


def program_folder() -> Path:
    """Return the folder of the unpacked program; fetch it first where the cache has none. Raises as `jars_of`."""
    jars_of(_ARCHIVE_SET)
    folder = cache_folder() / _ARCHIVE_SET.name
    unpacked = folder / "unpacked"
    if not unpacked.is_dir():
        unpacking = folder / "unpacking"
        with tarfile.open(folder / _ARCHIVE.file_name) as archive:
            archive.extractall(unpacking, filter="data")
        unpacking.rename(unpacked)
    return unpacked


class ApicurioRegistry:
    """A registry in a process of its own, empty at its start."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        self.url = f"http://{_HOST}:{self.port}{_API}"
        self._process = ServerProcess("Apicurio Registry", folder / "apicurio.log")

    def __enter__(self) -> Self:
        program = program_folder() / f"apicurio-registry-app-{VERSION}-runner.jar"
        addresses = f"-Dquarkus.http.host={_HOST}", f"-Dquarkus.http.port={self.port}"
        self._process.launch([java_executable(), "-Xmx300m", *addresses, "-jar", str(program)])
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the document of a response below 400."""
        with contextlib.closing(http.client.HTTPConnection(_HOST, self.port, timeout=20)) as connection:
            content = None if body is None else json.dumps(body)
            connection.request(method, _API + path, content, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
            response = connection.getresponse()
            payload = response.read()
        assert response.status < 400, payload
        return json.loads(payload)

    def register(self, subject: str, schema: str, **more: object) -> int:
        """Register a schema and return its id."""
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        return int(self.request("POST", path, {"schema": schema, **more})["id"])

    def _wait(self) -> None:
        give_up_at = time.monotonic() + _START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError, AssertionError):
                self.request("GET", "/subjects")
                return
            assert time.monotonic() < give_up_at, "Apicurio Registry did not start"
            time.sleep(0.1)
