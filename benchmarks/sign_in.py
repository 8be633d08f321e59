"""CPU of a mirror with one way to sign in beside others: the same topic and clusters, in turn, in the copying window only.

    python -m benchmarks.sign_in --methods scram,gssapi --gb 2 --runs 5

It needs what `make kdc` installs. The first method is what the others are compared with. CPU is that of the mirror's processes
in the steady window, as `make bench` measures it, without Spark's start. Every copy is compared with the source.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import written_source
from benchmarks.copying import run_peer
from benchmarks.corpora import CORPORA
from benchmarks.interrupts import end_on_sigterm
from benchmarks.peers.peer import Job
from benchmarks.peers.shallow_mirror import ShallowMirror
from benchmarks.resource_check import require_room
from benchmarks.results import Measured
from benchmarks.signed_in_clusters import METHODS, signed_in_clusters
from shallow_mirror.errors import MirrorError


class SignedInMirror(ShallowMirror):
    """shallow-mirror with the properties of a method."""

    def __init__(self, method: str, clients: tuple[dict[str, str], dict[str, str]]) -> None:
        super().__init__(method)
        self._clients = clients

    def _document(self, job: Job) -> dict[str, Any]:
        document = super()._document(job)
        document["source"]["client"], document["target"]["client"] = self._clients
        return document


def table(runs: Mapping[str, Sequence[Measured]]) -> list[str]:
    """Return a line for each method, and for each but the first its ratio to the first. Pure."""
    lines = []
    for method, measured in runs.items():
        cpu, rate = [run.cpu_s_per_gb for run in measured], [run.mb_per_s for run in measured]
        unequal = sum(not run.equal for run in measured)
        lines.append(
            f"{method:12}{statistics.median(cpu):7.3f} CPU s/GB ({min(cpu):.3f} to {max(cpu):.3f})"
            f"{statistics.median(rate):8.1f} MB/s ({min(rate):.1f} to {max(rate):.1f})"
            f"{f'  {unequal} NOT EQUAL' if unequal else ''}"
        )
    first, *others = runs
    for method in others:
        # Runs of one round followed each other: what else the machine did was similar.
        ratios = [one.cpu_s_per_gb / base.cpu_s_per_gb for one, base in zip(runs[method], runs[first], strict=True)]
        medians = [statistics.median(run.cpu_s_per_gb for run in runs[name]) for name in (method, first)]
        lines.append(
            f"{method} / {first}: {medians[0] / medians[1]:.3f} of the medians; in each round "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        )
    return lines


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[Measured]]:
    runs: dict[str, list[Measured]] = {method: [] for method in options.methods}
    with signed_in_clusters(folder) as signed_in:
        source = written_source(CORPORA[options.corpus], options.gb, signed_in.clusters, _say)
        for run in range(1, options.runs + 1):
            # Forwards and backwards: what a run leaves behind, such as data to be written to disk, is in the next one.
            for method in options.methods if run % 2 else reversed(options.methods):
                peer = SignedInMirror(method, signed_in.clients(method))
                measured = run_peer(peer, source, run, signed_in.clusters, folder)
                runs[method].append(measured)
                _say(f"run {run} of {options.runs}, {method}: {measured.cpu_s_per_gb:.3f} CPU s/GB, {measured.mb_per_s:.1f} MB/s")
    return runs


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def methods_of(text: str) -> list[str]:
    """Parse an option. Raises ArgumentTypeError."""
    methods = text.split(",")
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown method {unknown[0]!r}; known are {', '.join(METHODS)}")
    return methods


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sign_in", description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", type=methods_of, default=["scram", "gssapi"], help="default: scram,gssapi")
    parser.add_argument("--gb", type=float, default=2.0, help="size of the corpus in the source's log (default: 2)")
    parser.add_argument("--runs", type=int, default=5, choices=range(1, 101), metavar="N", help="of each method (default: 5)")
    parser.add_argument("--corpus", default="zstd-big", choices=sorted(CORPORA))
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        try:
            require_room(options.gb, Path(name))
            runs = measure(options, Path(name))
        except MirrorError as error:
            print(f"benchmarks.sign_in: {error}", file=sys.stderr)
            return 2
    print(f"{options.corpus}, {options.gb:g} GB, {options.runs} runs of each, in turn")
    print("\n".join(table(runs)))
    return 0 if all(run.equal for measured in runs.values() for run in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
