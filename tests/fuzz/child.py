"""The process that runs inputs of one target, one after the other, under a limit of memory: `python -m tests.fuzz.child`.

It notes the number of the input it is at in a mapped file, so that whoever started it knows which one it hangs or dies at, and
prints each finding as a line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import mmap
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz.target import Target

_NUMBER_BYTES = 8
_TARGETS = "tests.fuzz.targets"
_HARD_LIMIT_SHARE = 4
"""The address space, of which not everything is ever touched, may grow by so many times the bound on memory."""


@dataclass(frozen=True, slots=True)
class Found:
    """`kind`: crash, wrong output, over-allocation; hang and death are seen from outside only. `where` tells findings apart."""

    kind: str
    number: int
    where: str
    what: str


class Progress:
    """The number of an input, in a file that two processes have mapped."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_NUMBER_BYTES))
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), _NUMBER_BYTES)

    @property
    def number(self) -> int:
        return int.from_bytes(self._bytes[:], "little", signed=True)

    @number.setter
    def number(self, value: int) -> None:
        self._bytes[:] = value.to_bytes(_NUMBER_BYTES, "little", signed=True)


def tried(target: Target, number: int, data: bytes) -> Found | None:
    """Run one input; return its finding, or None."""
    try:
        target.run(data)
    except target.documented:
        return None
    except MemoryError as error:
        return _finding("over-allocation", number, error)
    except AssertionError as error:
        is_ours = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent == Path(__file__).parent
        return _finding("wrong output" if is_ours else "crash", number, error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return _finding("crash", number, error)
    return None


def _finding(kind: str, number: int, error: Exception) -> Found:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return Found(kind, number, where, "".join(traceback.format_exception(error, limit=-6)))


class Memory:
    """Of this process, above what it takes when it is made."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._before = most_bytes, _peak_bytes()

    def limit_address_space(self) -> None:
        """Where the system tells how much there is already."""
        statm = Path("/proc/self/statm")
        if statm.exists():
            now = int(statm.read_text().split()[0]) * resource.getpagesize()
            limit = now + _HARD_LIMIT_SHARE * self._most_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def excess(self, number: int) -> Found | None:
        """By the most that was ever resident: so the process is of no further use when there was."""
        taken = _peak_bytes() - self._before
        if taken <= self._most_bytes:
            return None
        what = f"{taken:,} bytes of memory, where {self._most_bytes:,} are the bound"
        return Found("over-allocation", number, "resident memory", what)


def _peak_bytes() -> int:
    """On Linux by the process's own mark: the other figure is handed down from the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def inputs(target: Target, seed: int, first: int, seconds: float) -> Iterator[tuple[int, bytes]]:
    """One at the least."""
    end = time.monotonic() + seconds
    for number in itertools.count(first):
        yield number, target.input(seed, number)
        if time.monotonic() > end:
            return


def run(target: Target, progress: Progress, memory: Memory, given: Iterator[tuple[int, bytes]]) -> int:
    """Print the findings, each location once; return how many inputs were run."""
    lines_seen, count = set(), 0
    for number, data in given:
        progress.number = number
        finding = tried(target, number, data)
        excess = memory.excess(number)
        if finding is not None and (finding.kind, finding.where) not in lines_seen:
            lines_seen.add((finding.kind, finding.where))
            print(json.dumps(asdict(finding)), flush=True)
        count += 1
        if excess is not None:
            print(json.dumps(asdict(excess)), flush=True)
            break
    return count


def targets_of(module: str) -> Mapping[str, Target]:
    targets: Mapping[str, Target] = importlib.import_module(module).TARGETS
    return targets


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("target")
    arguments.add_argument("progress", type=Path)
    arguments.add_argument("--targets", default=_TARGETS, help="module that has them")
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--first", type=int, required=True)
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("--memory", type=int, required=True)
    asked = arguments.parse_args()
    target = targets_of(asked.targets)[asked.target]
    tried(target, 0, target.corpus[0])  # what is loaded at first use is not the input's
    memory = Memory(asked.memory)
    memory.limit_address_space()
    given = inputs(target, asked.seed, asked.first, asked.seconds)
    print(json.dumps({"inputs": run(target, Progress(asked.progress), memory, given)}), flush=True)


if __name__ == "__main__":
    main()
