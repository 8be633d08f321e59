"""Many schedules of a partition that preserves offsets: `make model`, or `python -m tests.model.preserved.run SCHEDULES`.

A schedule is drawn from its number and the seed; a violation is printed with what it takes to replay it, step by step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.model.preserved.target import ViolationError
from tests.model.preserved.world import World

_REPORTED_EVERY = 100_000


def search(schedules: int, seed: int, first: int = 0) -> Counter[str]:
    """Play schedules and count what happened; `violations` among it, each printed."""
    total: Counter[str] = Counter()
    for number in range(first, first + schedules):
        world = World(seed_of(seed, number))
        try:
            world.run()
        except ViolationError as violation:
            total["violations"] += 1
            print(f"schedule {number} of seed {seed}: {violation}", flush=True)
        total["schedules"] += 1
        total["writers killed"] += world.killed
        total["refusals"] += world.target.refusals
        total["foreign writers"] += world.target.foreign_at is not None
        total["damage found"] += world.damage is not None
        total["own batches behind foreign ones"] += world.target.shifted
        total["evidence deleted"] += world.has_lost_evidence
        total["logs continued"] += world.is_continued
        total["logs not continued"] += world.is_refused
        if total["schedules"] % _REPORTED_EVERY == 0:
            print(_line(total), flush=True)
    return total


def seed_of(seed: int, number: int) -> int:
    return (seed << 40) + number


def _line(total: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in total.items()) + f"; {total['violations']} shifted or otherwise wrong"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("schedules", type=int)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only", type=int, help="play the schedule of this number alone, and print what goes wrong in it")
    asked = arguments.parse_args()
    if asked.only is not None:
        World(seed_of(asked.seed, asked.only), note=print).run()
        return
    began = time.monotonic()
    total = search(asked.schedules, asked.seed)
    print(f"{_line(total)}; {asked.schedules / (time.monotonic() - began):,.0f} schedules a second")
    sys.exit(1 if total["violations"] else 0)


if __name__ == "__main__":
    main()
