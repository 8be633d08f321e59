"""Millions of schedules: `make model`, or `python -m tests.model.run SCHEDULES`.

Round after round takes the next scenario, draws up to two deviations, and follows every schedule that has two more behind them.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import Counter

from tests.model.programs import Library
from tests.model.scenarios import SCENARIOS
from tests.model.seams import product_over_ports
from tests.model.search import Search, begun

SCHEDULES_OF_A_ROUND = 10_000


def search(schedules: int, seed: int) -> int:
    """How many findings there were: one per round at the most."""
    total: Counter[str] = Counter()
    rounds = 0
    while total["schedules"] < schedules:
        name = list(SCENARIOS)[rounds % len(SCENARIOS)]
        chance, library = random.Random(f"{seed}/{rounds}"), Library()
        start = begun(library, SCENARIOS[name], chance.randint(0, 2), chance)
        most = min(SCHEDULES_OF_A_ROUND, schedules - total["schedules"])
        tally = Search(library, SCENARIOS[name], len(start[1]) + 2, start=start).run(most)
        total.update(schedules=tally.schedules, moves=tally.moves, states=len(tally.states), stuck=tally.stuck)
        total["findings"] += tally.finding is not None
        rounds += 1
        print(f"round {rounds}, {name}: {tally}", flush=True)
    print(
        f"{rounds} rounds, {total['schedules']:,} schedules, {total['moves']:,} moves; distinct states of each round, summed: "
        f"{total['states']:,}; {total['stuck']:,} schedules rightly asked for the operator; findings: {total['findings']}"
    )
    return total["findings"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("schedules", type=int)
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    logging.disable(logging.WARNING)
    with product_over_ports():
        sys.exit(1 if search(asked.schedules, asked.seed) else 0)


if __name__ == "__main__":
    main()
