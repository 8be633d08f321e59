"""Random actions of operators for minutes or hours: `make faults FAULTS="operators --sequences 1000"`. Needs no brokers;
`--brokers` performs the same scripts on two real ones.

Every sequence has a seed: `--seed 17 --sequences 1` performs that of 17 again. Where something differs, its script is shortened
and printed with what happened.
"""

from __future__ import annotations

import argparse
import logging
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.operators.actions import Action
from tests.operators.scripts import CLASSES, Done, perform, script_of, shortened

_MEMORY = Path("/dev/shm")
_ALIKE = 40
"""Findings that begin alike are one while a script is shortened."""
_OF_THIS_RUN = re.compile(r"\d+|\([\w-]{6}\)")
"""Offsets and topic ids."""
_EVENT_CHARACTERS = 500


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="operators", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, help="no sequence begins after so many")
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence; the others follow")
    parser.add_argument(
        "--classes",
        nargs="+",
        choices=CLASSES,
        default=[],
        help="further actions; without, a seed is the script that it always was",
    )
    parser.add_argument("--brokers", action="store_true", help="perform the sequences on two local real brokers")
    chosen = parser.parse_args(arguments)
    if chosen.brokers and "beside" in chosen.classes:
        parser.error("--classes beside needs clusters in memory: leave out --brokers")
    if chosen.brokers:
        from tests.operators.real_rounds import on_brokers

        return on_brokers(range(chosen.seed, chosen.seed + chosen.sequences), chosen.minutes, chosen.classes)
    logging.disable(logging.CRITICAL)
    began, count, total, differing = time.monotonic(), 0, Done(None, ()), list[int]()
    with tempfile.TemporaryDirectory(prefix="operators-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        for seed in range(chosen.seed, chosen.seed + chosen.sequences):
            if chosen.minutes is not None and time.monotonic() - began > chosen.minutes * 60:
                break
            script = script_of(seed, chosen.classes)
            done = perform(script, Path(folder, "world"))
            count += 1
            total.add(done)
            if done.finding is not None:
                differing.append(seed)
                print(explained(seed, done.finding, Path(folder, "world"), script), flush=True)
            if count % 1000 == 0:
                print(summary(total, count, time.monotonic() - began), flush=True)
    print(summary(total, count, time.monotonic() - began))
    if differing:
        print(f"seeds that differ: {', '.join(map(str, differing))}")
    return 1 if differing else 0


def explained(seed: int, finding: str, folder: Path, script: Sequence[Action]) -> str:
    """Return the finding of a seed, and the shortest script that has it, with what happened."""
    script = shortened(script, folder, lambda other: _kind_of(other) == _kind_of(finding))
    done = perform(script, folder)
    return "\n".join([f"seed {seed}: {done.finding}", *(f"    {event[:_EVENT_CHARACTERS]}" for event in done.events)])


def _kind_of(finding: str) -> str:
    return _OF_THIS_RUN.sub("", finding)[:_ALIKE]


def summary(total: Done, sequences: int, seconds: float) -> str:
    return (
        f"{sequences} sequences in {seconds:.0f} s ({sequences / max(seconds, 0.001):.1f} a second): {total.runs} runs, "
        f"{total.kills} of them killed, {total.remedies} remedies taken, {total.records} records"
    )


if __name__ == "__main__":
    raise SystemExit(main())
