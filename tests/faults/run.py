"""make faults: rounds of faults on real brokers, and the tables of their results.

Every round is a line of JSON in `--results`; docs/reference/faults.md and fault-results.csv are made of all lines of that file.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.faults import campaigns, starts, storage_faults
from tests.faults.campaigns import Campaign, PlainScene
from tests.faults.document import PAGE, ROWS, published_results, write_document
from tests.faults.mirror_process import SPARK, WITHOUT_SPARK
from tests.faults.results import NO_FAULT, Result, commands, mean_rate, read_results, table, too_slow
from tests.faults.rounds import Fault, Round, RoundFailedError, Scene
from tests.faults.sink_rounds import main as sink_rounds
from tests.faults.steps import Step
from tests.operators.run import main as operators
from tests.random_archives.run import main as random_archives

NONE = "none"
WITHOUT_BROKERS = {"restore": random_archives, "operators": operators, "sink": sink_rounds}
"""Campaigns that need none, and have options of their own."""


def shuffled_for_ever(cases: Sequence[tuple[Fault, Step]], rng: random.Random) -> Iterator[tuple[Fault, Step]]:
    """Every case once, in another order each time."""
    while True:
        yield from rng.sample(cases, len(cases))


class Run:
    """One campaign in a folder of its own, until it has had its rounds or its time."""

    def __init__(self, campaign: Campaign, folder: Path, results: Path, seed: int, skip: int) -> None:
        self._campaign, self._folder, self._results, self._seed, self._skip = campaign, folder, results, seed, skip
        self._unchecked: Round | None = None
        self._checked: list[Result] = []
        self.is_clean = True

    def until(self, rounds: int, ends_at: float | None) -> None:
        cases = itertools.islice(shuffled_for_ever(self._campaign.cases, random.Random(self._seed)), self._skip, None)
        left = rounds
        for number in itertools.count():
            with ExitStack() as opened:
                scene = opened.enter_context(
                    self._campaign.open(self._folder / str(number), f"faults{number}", self._seed + number)
                )
                while left and (ends_at is None or time.monotonic() < ends_at):
                    left -= 1
                    if not self._is_recovered(scene, *next(cases), rounds - left, rounds):
                        break
                else:
                    self._note_checked()
                    self._finish(scene)
                    return
                self._note_checked()

    def _is_recovered(self, scene: Scene, fault: Fault, step: Step, number: int, rounds: int) -> bool:
        """Return False when the scene is of no use any more."""
        print(f"{self._campaign.name} {number}/{rounds}: {fault.name} at {step.name}", flush=True)
        try:
            done = scene.round(fault, step)
        except RoundFailedError as failure:
            self._note_checked()
            print(failure, file=sys.stderr, flush=True)
            self._note(self._result(fault.name, step.name, "did not recover", differences=(str(failure)[:2000],)))
            return False
        self._note_checked()
        self._unchecked = done
        if done.checked.done():  # what a run that is cut short has checked stands in its results
            self._note_checked()
        return True

    def _finish(self, scene: Scene) -> None:
        print(f"{self._campaign.name}: writers reached {mean_rate(self._checked) / 1e6:.2f} MB/s over all rounds", flush=True)
        print(f"{self._campaign.name}: everything is compared again", flush=True)
        try:
            end = scene.finish()
        except RoundFailedError as failure:
            self._note(self._result(NO_FAULT, "end", "did not catch up", differences=(str(failure)[:2000],)))
            return
        both = {"differences": end.differences, "left_behind": end.left_behind}
        self._note(
            self._result(NO_FAULT, "end", "clean stop; all compared again", records=end.records, seconds=end.seconds, **both)
        )

    def _result(self, fault: str, step: str, ending: str, **counts: Any) -> Result:
        """Return a line about something that is no round."""
        nothing: dict[str, Any] = {"records": 0, "acknowledged": 0, "unknown": 0, "seconds": 0.0}
        nothing |= {"differences": (), "left_behind": (), "campaign": self._campaign.name, "engine": self._campaign.engine}
        return Result(fault=fault, step=step, ending=ending, **{**nothing, **counts})

    def _note_checked(self) -> None:
        done, self._unchecked = self._unchecked, None
        if done is not None:
            result = Result.of(self._campaign.name, self._campaign.engine, done)
            self._note(result)
            self._checked.append(result)
            if (warning := too_slow(result, self._campaign.least_bytes_per_s)) is not None:
                print(f"  {warning}", file=sys.stderr, flush=True)

    def _note(self, result: Result) -> None:
        with self._results.open("a", encoding="utf-8") as file:
            file.write(result.line())
        if result.differences or result.left_behind:
            self.is_clean = False
            print(f"  {result.fault} at {result.step}: {result.differences} {result.left_behind}", file=sys.stderr, flush=True)


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in WITHOUT_BROKERS:
        return WITHOUT_BROKERS[sys.argv[1]](sys.argv[2:])
    names = [campaign.name for campaign in campaigns.ALL]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "campaigns",
        nargs="*",
        metavar="CAMPAIGN",
        help=f"all of them by default; none: only --starts; {', '.join(names)}. Without brokers: restore --help "
        "(random archives), operators --help (random actions of operators; on real ones with --brokers), sink --help (DataFrame sinks)",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each campaign; each has its own default")
    parser.add_argument("--minutes", type=float, help="no round of a campaign begins after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--skip", type=int, default=0, help="cases to leave out of the order that the seed makes: an earlier run had them"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("build/faults.jsonl"), help="where the lines go, and where older ones are"
    )
    parser.add_argument(
        "--published", action="store_true", help="begin a new file of --results with the rounds of fault-results.csv"
    )
    parser.add_argument("--starts", type=int, default=0, metavar="N", help="measure N starts of each kind as well")
    parser.add_argument("--write", action="store_true", help="write docs/reference/faults.md and fault-results.csv")
    parser.add_argument("--folder", type=Path, help="where clusters and mirrors live; kept. A temporary folder by default")
    chosen = parser.parse_args()
    unknown = set(chosen.campaigns) - {*names, NONE}
    if unknown:
        parser.error(f"no such campaign: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    if chosen.published and not chosen.results.exists():
        chosen.results.write_text("".join(result.line() for result in published_results(ROWS)), encoding="utf-8")
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="faults-"))
    is_clean = True
    for campaign in campaigns.ALL:
        if campaign.needs_root and not storage_faults.may_mount():
            print(f"{campaign.name}: left out, it mounts file systems and needs root for that", file=sys.stderr)
        elif not chosen.campaigns or campaign.name in chosen.campaigns:
            ends_at = None if chosen.minutes is None else time.monotonic() + chosen.minutes * 60
            run = Run(campaign, folder / campaign.name, chosen.results, chosen.seed, chosen.skip)
            run.until(chosen.rounds or campaign.rounds, ends_at)
            is_clean &= run.is_clean
    starts_file = chosen.results.with_suffix(".starts.jsonl")
    if chosen.starts:
        for engine in (WITHOUT_SPARK, SPARK):
            with PlainScene(engine)(folder / f"starts {engine}", "starts", chosen.seed) as scene:
                starts.write_starts(starts_file, starts.measure(scene, chosen.starts))
    results, measured = read_results(chosen.results), starts.read_starts(starts_file)
    shown = "\n".join((commands(results), table(results), starts.starts_table(measured)))
    print(shown)
    if chosen.write:
        write_document(PAGE, ROWS, results, starts.starts_table(measured) if measured else None)
    if chosen.folder is None and is_clean:
        shutil.rmtree(folder)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
