"""make bench: shallow-mirror beside other ways to copy between two Kafka clusters; see docs/reference/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.comparison import Comparison
from benchmarks.corpora import CORPORA, chosen_corpora
from benchmarks.interrupts import end_on_sigterm
from benchmarks.link import add_link_options, links_of
from benchmarks.peers.peer_registry import PEERS, chosen_peers
from benchmarks.plot import write_plot
from benchmarks.resource_check import require_room
from benchmarks.results import Failed, Result, write_json
from benchmarks.table import print_tables
from shallow_mirror.errors import MirrorError

OUTPUT = Path("build/bench")
TABLE_WIDTH = 140


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--corpora", type=_names, default=[], help=f"of {', '.join(CORPORA)} (default: all)")
    parser.add_argument("--peers", type=_names, default=[], help=f"of {', '.join(PEERS)} (default: all)")
    parser.add_argument("--gb", type=_positive, default=2.0, help="size of each corpus in the source's log (default: 2)")
    parser.add_argument("--runs", type=int, default=3, choices=range(1, 101), metavar="N", help="of each peer (default: 3)")
    parser.add_argument("--json", type=Path, default=OUTPUT / "results.json", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--plot", type=Path, default=OUTPUT / "results.svg", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--folder", type=Path, help="where brokers and peers keep their data (default: a temporary folder)")
    add_link_options(parser)
    options = parser.parse_args(arguments)
    options.links = links_of(parser, options)
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _positive(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def compare(options: argparse.Namespace, console: Console) -> list[Result]:
    """Compare the peers. Raises ConfigError before anything starts. Every measurement is in the JSON from the first result on."""
    comparison = Comparison(chosen_corpora(options.corpora), chosen_peers(options.peers), options.gb, options.runs, options.links)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-", dir=options.folder) as name:
        require_room(options.gb, Path(name))
        results: list[Result] = []
        for result in comparison.results(Path(name), lambda message: console.print(message, markup=False, highlight=False)):
            results.append(result)
            write_json(options.json, results)
    return results


def main() -> int:
    options = parsed()
    end_on_sigterm()
    try:
        results = compare(options, Console(stderr=True, soft_wrap=True))
    except MirrorError as error:
        print(f"make bench: {error}", file=sys.stderr)
        return 2
    console = Console()
    print_tables(results, Console(width=max(console.width, TABLE_WIDTH)))
    write_plot(options.plot, results)
    print(f"{options.json}\n{options.plot}")
    return 1 if any(isinstance(result, Failed) or not result.equal for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
