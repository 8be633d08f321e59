"""Start of a mirror with each way to sign in: seconds until its first record is visible, and how many more than with PLAIN.

    python -m benchmarks.sign_in_start --runs 3 [--methods plain,scram,gssapi]

It needs what `make kdc` installs. Tokens come from the fakes of the tests on this machine, so a real provider's response time
is not in the figures. The first method is what the others are compared with; a first start is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.interrupts import end_on_sigterm
from benchmarks.sign_in import methods_of
from benchmarks.signed_in_clusters import METHODS, SignedInClusters, signed_in_clusters
from benchmarks.start_up import Start, one_start
from shallow_mirror.errors import MirrorError

_SHOWN_CHARACTERS = 2_000


def table(starts: Mapping[str, Sequence[Start]]) -> list[str]:
    """Return a line for each method. Pure."""
    first = next(iter(starts))
    lines = [f"{'':12}{'first record, s':>24}{f'more than {first}, s':>26}{'CPU s':>8}{'more CPU s':>12}"]
    for method, own in starts.items():
        seconds = [start.seconds for start in own]
        # Starts of one round followed each other: what else the machine did was similar.
        rounds = list(zip(own, starts[first], strict=True))
        more = [start.seconds - base.seconds for start, base in rounds]
        more_cpu_s = statistics.median(start.cpu_s - base.cpu_s for start, base in rounds)
        lines.append(
            f"{method:12}{f'{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})':>24}"
            f"{f'{statistics.median(more):+.2f} ({min(more):+.2f} to {max(more):+.2f})':>26}"
            f"{statistics.median(start.cpu_s for start in own):8.2f}{more_cpu_s:+12.2f}"
        )
    return lines


def measure(methods: Sequence[str], runs: int, folder: Path) -> dict[str, list[Start]]:
    starts: dict[str, list[Start]] = {method: [] for method in methods}
    with signed_in_clusters(folder / "kafka") as signed_in:
        _start(signed_in, methods[0], folder, 0)
        for run in range(1, runs + 1):
            for method in methods if run % 2 else reversed(methods):
                starts[method].append(_start(signed_in, method, folder, run))
                print(f"run {run} of {runs}, {method}: {starts[method][-1].seconds:.2f} s", file=sys.stderr, flush=True)
    return starts


def _start(signed_in: SignedInClusters, method: str, folder: Path, run: int) -> Start:
    source, target = signed_in.clients(method)
    name = f"start-{method}-{run}"
    sides = {"source": {"alias": "source", "client": source}, "target": {"alias": "target", "client": target}}
    try:
        return one_start(signed_in.clusters, folder / name, name, sides)
    except TimeoutError as error:
        log = (folder / name / "mirror.log").read_text(encoding="utf-8", errors="replace")
        raise MirrorError(f"{method}: {error}. The end of its log:\n{log[-_SHOWN_CHARACTERS:]}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sign_in_start", description=__doc__.partition("\n")[0])
    usual = [method for method in METHODS if method != "none"]
    parser.add_argument("--methods", type=methods_of, default=usual, help=f"default: {','.join(usual)}")
    parser.add_argument("--runs", type=int, default=3, choices=range(1, 101), metavar="N", help="of each method (default: 3)")
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        try:
            starts = measure(options.methods, options.runs, Path(name))
        except MirrorError as error:
            print(f"benchmarks.sign_in_start: {error}", file=sys.stderr)
            return 2
    print(f"{options.runs} starts of each, in turn: medians (ranges)")
    print("\n".join(table(starts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
