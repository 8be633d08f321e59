"""make fuzz: hostile inputs for every parser, for MINUTES in all; findings go to build/fuzz, each with what repeats it.

A finding is an error that the parser does not document, more than 10 CPU seconds or more memory than its bound for one
input, or a result that breaks a promise.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from tests.fuzz.campaign import Bounds, Campaign
from tests.fuzz.child import tried
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets_of_batches import MAX_OPENED_BYTES

BOUNDS = Bounds(seconds=10, memory_bytes=6 * MAX_OPENED_BYTES)
"""What may be opened of a batch, and that once more for each of: the library's buffer, the arrays, the records as they become,
the new batch, and what the target here compares."""

_ROUND_MINUTES = 10


def report(campaign: Campaign) -> str:
    lines = [f"{'target':40}{'inputs':>10}{'a second':>10}{'findings':>10}"]
    for name in campaign.targets:
        inputs, seconds = campaign.inputs[name], campaign.seconds[name]
        finding_count = sum(key[0] == name for key in campaign.findings)
        lines.append(f"{name:40}{inputs:10,}{inputs / max(seconds, 0.001):10,.0f}{finding_count:10}")
    total, seconds = campaign.inputs.total(), campaign.seconds.total()
    lines.append(
        f"{len(campaign.targets)} targets, {total:,} inputs, {total / max(seconds, 1):,.0f} a second, {len(campaign.findings)} findings"
    )
    return "\n".join(lines)


def repeat(name: str, path: Path) -> int:
    """1 when the input still brings the same or another error to light. Hangs hang, and memory is not watched."""
    finding = tried(TARGETS[name], 0, path.read_bytes())
    print("nothing found" if finding is None else f"{finding.kind}\n{finding.what}")
    return int(finding is not None)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--seed", type=int, default=int(time.time()), help="another one each time by default; it is printed")
    arguments.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="TARGET")
    arguments.add_argument("--repeat", nargs=2, metavar=("TARGET", "FILE"))
    asked = arguments.parse_args()
    if asked.repeat:
        sys.exit(repeat(asked.repeat[0], Path(asked.repeat[1])))
    targets = {name: TARGETS[name] for name in asked.only}
    campaign = Campaign(targets, "tests.fuzz.targets", BOUNDS, Path("build/fuzz"), asked.seed)
    print(f"{len(targets)} targets, {asked.minutes} minutes, seed {asked.seed}", flush=True)
    campaign.run(60 * asked.minutes, math.ceil(asked.minutes / _ROUND_MINUTES))
    print(report(campaign))
    sys.exit(1 if campaign.findings else 0)


if __name__ == "__main__":
    main()
