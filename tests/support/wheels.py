"""A wheel of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT_PACKAGES = ("streaming", "sinks", "checkpoints")


def build_wheel(repository: Path, copy: Path) -> Path:
    """Build without network, from a copy in which the root folders stand where their links are."""
    shutil.copytree(repository / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(repository / name, copy / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "deprecated" not in (ended.stdout + ended.stderr).lower()
    (built,) = (copy / "dist").glob("*.whl")
    return built
