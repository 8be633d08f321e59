"""The alerts for Prometheus, by its own checker where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on this machine (a part of Prometheus)")
def test_prometheus_accepts_the_rules(repository: Path) -> None:
    command = ["promtool", "check", "rules", str(repository / "conf" / "prometheus-rules.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
