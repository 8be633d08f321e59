"""A real S3 server on a folder, and a proxy in front of it that makes faults; both end with this process, however it ends.

The server is versitygw, a Go program: built once into the cache folder of the jars through Go's module proxy (about two minutes, with
800 MB of Go's own caches), and used from there. Its posix backend keeps objects as files and honours If-None-Match.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.object_store import store_proxy
from tests.object_store.store_proxy import CONTROL, HOST, StoreFault

from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.local_kafka import cache_folder
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.local_kafka.server_process import ServerProcess

VERSION = "v1.8.0"
MODULE = "github.com/versity/versitygw/cmd/versitygw"
BUCKET = "mirrors"
ACCESS_KEY, SECRET_KEY = "mirror", "not-a-secret"

_BUILD_TIMEOUT_S = 1200
_START_TIMEOUT_S = 20.0


class GoMissingError(Exception):
    """Neither a built server nor Go to build it."""


def server_program() -> Path:
    """Return the built server; build it first where the cache has none. Raises GoMissingError, CalledProcessError."""
    folder = cache_folder() / f"versitygw-{VERSION}"
    program = folder / "versitygw"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise GoMissingError(
            f"the tests of object stores need Go, to build {MODULE}@{VERSION} once: install Go 1.24 or newer (https://go.dev/dl)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes begin at the same time
        if not program.exists():
            environment = {**os.environ, "GOBIN": str(folder / "building"), "GOFLAGS": "-modcacherw"}
            command = [go, "install", f"{MODULE}@{VERSION}"]
            subprocess.run(command, env=environment, check=True, timeout=_BUILD_TIMEOUT_S, stdin=subprocess.DEVNULL)
            (folder / "building" / "versitygw").rename(program)
    return program


class StoreServer:
    """`folder` holds the bucket as files; `port` is the server's own, without faults.

    With `certificate` and `key`, files, it listens with TLS alone. With `versions`, a folder, its bucket keeps there what is
    deleted or replaced.
    """

    def __init__(
        self, folder: Path, *, certificate: Path | None = None, key: Path | None = None, versions: Path | None = None
    ) -> None:
        self.folder = folder
        self._versions = versions
        self.port = free_ports(1)[0]
        self._tls = () if certificate is None else ("--cert", str(certificate), "--key", str(key))
        self._process = ServerProcess(f"the object store in {folder}", folder.parent / "versitygw.log")

    def start(self) -> None:
        (self.folder / BUCKET).mkdir(parents=True, exist_ok=True)
        environment = f"ROOT_ACCESS_KEY={ACCESS_KEY}", f"ROOT_SECRET_KEY={SECRET_KEY}"
        program = str(server_program())
        options = ("--port", f"{HOST}:{self.port}", *self._tls, "--quiet", "--keep-alive")
        backend = ["posix", str(self.folder)]
        if self._versions is not None:
            self._versions.mkdir(parents=True, exist_ok=True)
            backend[1:1] = ["--versioning-dir", str(self._versions)]
        self._process.launch(["env", *environment, program, *options, *backend])
        _wait_for_port(self.port)
        if self._versions is not None:
            self._keep_versions()

    def _keep_versions(self) -> None:
        """Turn versioning of the bucket on, by a request with a signature of version 4: obstore has none for buckets."""
        body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
        now = datetime.now(UTC)
        host, hashed = f"{HOST}:{self.port}", hashlib.sha256(body).hexdigest()
        headers = {"host": host, "x-amz-content-sha256": hashed, "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}"}
        names, scope = ";".join(headers), f"{now:%Y%m%d}/us-east-1/s3/aws4_request"
        lines = "\n".join(f"{name}:{value}" for name, value in headers.items())
        request = f"PUT\n/{BUCKET}\nversioning=\n{lines}\n\n{names}\n{hashed}"
        to_sign = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{SECRET_KEY}".encode()
        for part in (*scope.split("/"), to_sign):
            key = hmac.digest(key, part.encode(), "sha256")
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        )
        with contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=10)) as connection:
            connection.request("PUT", f"/{BUCKET}?versioning", body, headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()

    def stop(self) -> None:
        self._process.stop()

    @property
    def endpoint(self) -> str:
        return f"{'https' if self._tls else 'http'}://{HOST}:{self.port}"


class StoreProxy:
    """A proxy process in front of a server. Faults and counts of requests: see `store_proxy`.

    With `certificate_and_key`, a file, clients reach it by TLS; `ca_file` is theirs.
    """

    def __init__(
        self, server: StoreServer, log_folder: Path, *, certificate_and_key: Path | None = None, ca_file: Path | None = None
    ) -> None:
        self.port = free_ports(1)[0]
        self._process = ServerProcess("the proxy of the object store", log_folder / "proxy.log")
        self._ca_file = ca_file
        self._command = [
            sys.executable, "-I", store_proxy.__file__, str(self.port), str(server.port), str(server.folder),
        ]  # fmt: skip
        if certificate_and_key is not None:
            self._command.append(str(certificate_and_key))

    def start(self) -> None:
        self._process.launch(self._command)
        _wait_for_port(self.port)

    def stop(self) -> None:
        self._process.kill()

    @property
    def endpoint(self) -> str:
        return f"{'http' if self._ca_file is None else 'https'}://{HOST}:{self.port}"

    def inject(self, fault: StoreFault) -> None:
        self._ask("inject", {**dataclasses.asdict(fault), "harm": fault.harm.name})

    def clear(self) -> None:
        self._ask("clear", {})

    def hits(self) -> int:
        """Return how many requests have met the faults that are active."""
        return int(self._ask("state", {})["hits"])

    def requests(self) -> list[tuple[str, str]]:
        """Return (method, path and query) of every request so far."""
        return [(method, path) for method, path in self._ask("state", {})["requests"]]

    def payload_hashes(self) -> list[str]:
        """Return what each request so far says about the hash of its body (`x-amz-content-sha256`), in the order of `requests`."""
        return [str(payload_hash) for payload_hash in self._ask("payload_hashes", {})]

    @contextlib.contextmanager
    def faulty(self, fault: StoreFault) -> Iterator[None]:
        self.inject(fault)
        try:
            yield
        finally:
            self.clear()

    def _ask(self, what: str, body: dict[str, Any]) -> Any:
        with contextlib.closing(self._connection()) as connection:
            connection.request("POST", CONTROL + what, json.dumps(body))
            return json.loads(connection.getresponse().read())

    def _connection(self) -> http.client.HTTPConnection:
        if self._ca_file is None:
            return http.client.HTTPConnection(HOST, self.port, timeout=10)
        context = ssl.create_default_context(cafile=self._ca_file)
        return http.client.HTTPSConnection(HOST, self.port, timeout=10, context=context)


def options_for(endpoint: str, **changes: str) -> dict[str, str]:
    """Return `storage.options` for a server or its proxy."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": "${env:STORE_SECRET_KEY}",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        **changes,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A folder for the tables of one test, reached through the proxy."""

    proxy: StoreProxy
    server: StoreServer
    location: str

    def storage(self, **changes: str) -> TableLocation:
        """Return the tables' folder; requests fail sooner than in a mirror unless `changes` say otherwise."""
        quick = {"timeout": "1s", "retry_timeout": "1s", "max_retries": "1"}
        return TableLocation(self.location, options_for(self.proxy.endpoint, **{**quick, **changes}))

    def files(self) -> list[str]:
        """Return the names of all objects of the test, below its folder."""
        root = self.server.folder / self.location.removeprefix("s3://")
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def _wait_for_port(port: int) -> None:
    give_up_at = time.monotonic() + _START_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=1)) as connection:
            connection.connect()
            return
        assert time.monotonic() < give_up_at, f"nothing listens on port {port}"
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        print(server_program())
    except GoMissingError as missing:
        sys.exit(str(missing))
