"""Hostile inputs for all targets in turn, each in a process that may hang, die or ask for too much memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.fuzz.child import Found, Progress
from tests.fuzz.target import Target

_POLL_S = 0.2
_WALL_SHARE = 20
"""An input that waits for something takes no CPU time: this many times its limit then passes by the clock."""

_LEAST_S_OF_AN_END = 1.0
"""An input that ends its process costs so much of the target's time, or a target that always dies would never be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one input: CPU seconds, and bytes of memory above what the process has without it."""

    seconds: float
    memory_bytes: int


@dataclass(slots=True)
class Campaign:
    """`targets_module` is where the children find the targets."""

    targets: Mapping[str, Target]
    targets_module: str
    bounds: Bounds
    folder: Path
    seed: int = 0
    inputs: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    findings: dict[tuple[str, str, str], Path] = field(default_factory=dict)

    def run(self, seconds: float, rounds: int) -> None:
        """All targets get as much of the time, in which to start a process does not count."""
        slice_s = seconds / rounds / len(self.targets)
        for _ in range(rounds):
            for name in self.targets:
                self.run_slice(name, slice_s)

    def run_slice(self, name: str, seconds: float) -> None:
        """Goes on behind an input that ended its process, until the time is over."""
        end = self.seconds[name] + seconds
        while self.seconds[name] < end:
            if self._run_child(name, end - self.seconds[name]):
                break

    def _run_child(self, name: str, seconds: float) -> bool:
        """Return False where an input ended the process."""
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            number_path, report_path = Path(scratch) / "number", Path(scratch) / "told"
            progress, first = Progress(number_path), self.inputs[name]
            progress.number = first - 1
            arguments = [
                name,
                str(number_path),
                "--targets",
                self.targets_module,
                "--seed",
                str(self.seed),
                "--first",
                str(first),
            ]
            arguments += ["--seconds", str(seconds), "--memory", str(self.bounds.memory_bytes)]
            with report_path.open("w") as out, (Path(scratch) / "errors").open("w+") as errors:
                environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
                command = [sys.executable, "-m", "tests.fuzz.child", *arguments]
                child = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
                ended = self._ended(child, progress, name)
                errors.seek(0)
                output = errors.read()[-2_000:]
            if progress.number < first:
                raise RuntimeError(f"the process for {name} did not come to its first input: {output}")
            return self._take(name, progress.number, ended, output, report_path.read_text().splitlines())

    def _ended(self, child: subprocess.Popen[bytes], progress: Progress, name: str) -> str:
        """Empty when it ended by itself and well, else the kind of finding. What it does in front of the first input is not timed."""
        process, watch, before = psutil.Process(child.pid), (-1, 0.0, 0.0), time.monotonic()
        while child.poll() is None:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                break
            number, used, now = progress.number, times.user + times.system, time.monotonic()
            if number >= self.inputs[name]:
                self.seconds[name] += now - before  # type: ignore[assignment]
            before = now
            if number != watch[0] or number < self.inputs[name]:
                watch = number, used, now
            elif used - watch[1] > self.bounds.seconds or now - watch[2] > _WALL_SHARE * self.bounds.seconds:
                child.kill()
                child.wait()
                return "hang"
            time.sleep(_POLL_S)
        return "" if child.wait() == 0 else "death"

    def _take(self, name: str, number: int, ended: str, message: str, lines: list[str]) -> bool:
        documents = [json.loads(line) for line in lines]
        for document in documents:
            if "kind" in document:
                self._keep(name, Found(**document))
        if ended:
            what = f"more than {self.bounds.seconds} CPU seconds" if ended == "hang" else f"the process died: {message}"
            self._keep(name, Found(ended, number, ended, what))
        self.inputs[name] = number + 1
        is_whole = not ended and not any(document.get("where") == "resident memory" for document in documents)
        self.seconds[name] += 0 if is_whole else _LEAST_S_OF_AN_END  # type: ignore[assignment]
        return is_whole

    def _keep(self, name: str, finding: Found) -> None:
        """Keep the first finding of its kind and location: the input, and how to repeat it."""
        key = (name, finding.kind, finding.where)
        if key in self.findings:
            return
        data = self.targets[name].input(self.seed, finding.number)
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^a-z0-9]+", "-", f"{name} {finding.kind}".lower()) + "-" + hashlib.sha256(data).hexdigest()[:8]
        path = self.folder / f"{stem}.bin"
        path.write_bytes(data)
        command = f'.venv/bin/python -m tests.fuzz.run --repeat "{name}" {path}'
        path.with_suffix(".txt").write_text(
            f"{name}: {finding.kind}, input {finding.number} of seed {self.seed}\n{command}\n\n{finding.what}\n"
        )
        self.findings[key] = path
        print(f"FOUND {name}: {finding.kind}, {finding.where}\n  {command}", flush=True)
