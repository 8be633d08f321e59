"""A Go loop over franz-go: benchmarks/franz_go, built into the cache folder where there is a `go`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.go_program import GoBuildError, GoProgram
from benchmarks.peers.peer import Job, Peer, PeerMissingError, started

PROGRAM = GoProgram("franz-go", Path(__file__).parent.parent / "franz_go")
ENVIRONMENT = {"GOGC": "400"}
"""Fewer collections for more memory."""


class FranzGo(Peer):
    name = "franz-go"

    def prepare(self) -> None:
        """Build it, unless the cache has it. The first time takes a minute and the network."""
        try:
            PROGRAM.build()
        except GoBuildError as error:
            raise PeerMissingError(f"{error}: skipped") from error

    def launch(self, job: Job) -> subprocess.Popen[bytes]:
        return started(job, [str(PROGRAM.path), job.as_json()], ENVIRONMENT)
