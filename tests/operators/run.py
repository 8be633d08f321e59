"""Random actions of operators for minutes or hours: `make faults FAULTS="operators --sequences 1000"`. Needs no brokers;
`--brokers` performs the same scripts on two real ones, `--migrations` whole migrations.

Every sequence has a seed: `--seed 17 --sequences 1` performs that of 17 again. Where something differs, its script is shortened
and printed with what happened.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.operators.actions import Action
from tests.operators.findings import alike, told
from tests.operators.moves import scripts as moves
from tests.operators.scripts import CLASSES, Done, perform, script_of, shortened

_MEMORY = Path("/dev/shm")


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
    parser.add_argument("--migrations", action="store_true", help="perform whole migrations instead, with everything around them")
    chosen = parser.parse_args(arguments)
    if chosen.migrations and (chosen.brokers or chosen.classes):
        parser.error("--migrations has actions of its own, and needs clusters in memory: leave out --brokers and --classes")
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
            world = Path(folder, "world")
            if chosen.migrations:
                script: Any = moves.script_of(seed)
                done = moves.perform(script, world)
            else:
                script = script_of(seed, chosen.classes)
                done = perform(script, world)
            count += 1
            total.add(done)
            if done.finding is not None:
                differing.append(seed)
                print((moves.explained if chosen.migrations else explained)(seed, done.finding, world, script), flush=True)
            if count % 1000 == 0:
                print(summary(total, count, time.monotonic() - began), flush=True)
    print(summary(total, count, time.monotonic() - began))
    if differing:
        print(f"seeds that differ: {', '.join(map(str, differing))}")
    return 1 if differing else 0


def explained(seed: int, finding: str, folder: Path, script: Sequence[Action]) -> str:
    """Return the finding of a seed, and the shortest script that has it, with what happened."""
    script = shortened(script, folder, alike(finding))
    return told(seed, perform(script, folder))


def summary(total: Done, sequences: int, seconds: float) -> str:
    return (
        f"{sequences} sequences in {seconds:.0f} s ({sequences / max(seconds, 0.001):.1f} a second): {total.runs} runs, "
        f"{total.kills} of them killed, {total.remedies} remedies taken, {total.records} records"
    )


if __name__ == "__main__":
    raise SystemExit(main())
