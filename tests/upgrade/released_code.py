"""The code of an earlier commit, run in processes of its own with the packages of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HOST = "mirror-host"
"""Name of the machine in what is captured."""

_CLI = f"""
import socket, sys
socket.gethostname = lambda: {HOST!r}
import shallow_mirror
assert shallow_mirror.__file__.startswith(sys.argv.pop(1)), shallow_mirror.__file__
from shallow_mirror.cli import main
main()
"""


def has_commit(repository: Path, commit: str) -> bool:
    """Return whether the checkout has the commit: one without history, or a copy of the files, does not."""
    command = ["git", "-C", str(repository), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@dataclass(frozen=True, slots=True)
class ReleasedCode:
    """`folder` holds `src` and the root folders of the commit."""

    folder: Path

    @classmethod
    def extract(cls, repository: Path, commit: str, folder: Path) -> ReleasedCode:
        """Write the code of a commit into `folder`. Raises CalledProcessError."""
        folder.mkdir(parents=True, exist_ok=True)
        command = ["git", "-C", str(repository), "archive", commit, "src", "streaming", "sinks", "checkpoints"]
        files = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(folder)], input=files, check=True)
        return cls(folder.resolve())

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `shallow-mirror` of this release, for processes with `environment`."""
        return [sys.executable, "-c", _CLI, str(self.folder), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
        return variables | {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, folder: Path, *arguments: str) -> str:
        """Run a command to its end, in `folder`. Return its output. Raises CalledProcessError."""
        return self._output(folder, self.command(*arguments))

    def run_script(self, folder: Path, script: Path, *arguments: str) -> str:
        """Run a Python file with this release's package. Return its output. Raises CalledProcessError."""
        return self._output(folder, [sys.executable, str(script), *arguments])

    def _output(self, folder: Path, command: list[str]) -> str:
        ended = subprocess.run(
            command, cwd=folder, env=self.environment, stdout=subprocess.PIPE, text=True, check=True, timeout=300
        )
        return ended.stdout
