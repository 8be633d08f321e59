"""A Go loop over franz-go: benchmarks/franz_go, built into the cache folder where there is a `go`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from benchmarks.peers.peer import Job, Peer, PeerMissingError, started
from shallow_mirror.local_kafka.jars import cache_folder

SOURCES = Path(__file__).parent.parent / "franz_go"
ENVIRONMENT = {"GOGC": "400"}
"""Fewer collections for more memory."""

_BUILD_WITHIN_S = 600
_TAIL = 2000


class FranzGo(Peer):
    name = "franz-go"

    def prepare(self) -> None:
        """Its name in the cache changes with its sources. The first time takes a minute and the network."""
        program = _program()
        if program.is_file():
            return
        go = shutil.which("go")
        if go is None:
            raise PeerMissingError("franz-go needs the Go toolchain to be built, and there is no `go` on the path: skipped")
        program.parent.mkdir(parents=True, exist_ok=True)
        built = subprocess.run(
            [go, "build", "-o", str(program), "."],
            cwd=SOURCES,
            capture_output=True,
            text=True,
            timeout=_BUILD_WITHIN_S,
            check=False,
        )
        if built.returncode != 0:
            raise PeerMissingError(f"franz-go could not be built: {built.stderr[-_TAIL:]}")

    def launch(self, job: Job) -> subprocess.Popen[bytes]:
        return started(job, [str(_program()), job.as_json()], ENVIRONMENT)


def _program() -> Path:
    digest = hashlib.sha256(b"".join((SOURCES / name).read_bytes() for name in ("main.go", "go.mod", "go.sum")))
    return cache_folder() / f"bench-franz-go-{digest.hexdigest()[:12]}"
