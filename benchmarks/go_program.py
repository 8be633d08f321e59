"""Go programs of the benchmarks: built into the cache folder where there is a `go`."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shallow_mirror.errors import MirrorError
from shallow_mirror.local_kafka import cache_folder

_BUILD_WITHIN_S = 600
_TAIL = 2000


class GoBuildError(MirrorError):
    """A Go program is not in the cache and cannot be built. Nothing was started."""


@dataclass(frozen=True, slots=True)
class GoProgram:
    """`sources`: its folder, with `main.go` and `go.mod`. The name in the cache changes with them."""

    name: str
    sources: Path

    @property
    def path(self) -> Path:
        files = (self.sources / name for name in ("main.go", "go.mod", "go.sum"))
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file()))
        return cache_folder() / f"bench-{self.name}-{digest.hexdigest()[:12]}"

    def build(self) -> Path:
        """Return the built program; one with dependencies takes a minute and the network the first time. Raises GoBuildError."""
        program = self.path
        if program.is_file():
            return program
        go = shutil.which("go")
        if go is None:
            raise GoBuildError(f"{self.name} needs the Go toolchain to be built, and there is no `go` on the path")
        program.parent.mkdir(parents=True, exist_ok=True)
        with program.with_name(f"{program.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # test processes begin at the same time
            if not program.is_file():
                self._build_with(go, program)
        return program

    def _build_with(self, go: str, program: Path) -> None:
        unfinished = program.with_name(f"{program.name}.new")
        built = subprocess.run(
            [go, "build", "-o", str(unfinished), "."],
            cwd=self.sources,
            capture_output=True,
            text=True,
            timeout=_BUILD_WITHIN_S,
            check=False,
        )
        if built.returncode != 0:
            raise GoBuildError(f"{self.name} could not be built: {built.stderr[-_TAIL:]}")
        unfinished.rename(program)
