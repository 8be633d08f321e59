"""Random archives for minutes or hours: `make faults FAULTS="restore --archives 1000"`. Needs no brokers.

Every archive has a seed: `--seed 17 --archives 1 --script` makes that of 17 again, and prints its steps.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tests.random_archives.checks import Found
from tests.random_archives.restore_target import RestoreTarget
from tests.random_archives.rounds import check_archive

_MEMORY = Path("/dev/shm")
_SHOWN_DIFFERENCES = 5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="restore", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=int, default=1000)
    parser.add_argument("--minutes", type=float, help="no archive begins after so many")
    parser.add_argument("--seed", type=int, default=0, help="of the first archive; the others follow")
    parser.add_argument("--cuts", type=int, default=3, help="of each archive")
    parser.add_argument("--restores", type=int, default=1, help="so many of the cuts are restored to a cluster, all are read")
    parser.add_argument("--script", action="store_true", help="print the steps of every archive that differs")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="random-archives-", dir=_MEMORY if _MEMORY.is_dir() else None))
    total, began, count = Found(), time.monotonic(), 0
    seeds: list[str] = []
    with RestoreTarget() as target:
        for seed in range(chosen.seed, chosen.seed + chosen.archives):
            if chosen.minutes is not None and time.monotonic() - began > chosen.minutes * 60:
                break
            history, found = check_archive(seed, folder / str(seed), target, cuts=chosen.cuts, restores=chosen.restores)
            count += 1
            add_to(total, found)
            for difference in found.differences[:_SHOWN_DIFFERENCES]:
                print(f"seed {seed}: {difference}", flush=True)
            seeds += [str(seed)] if found.differences else []
            if found.differences and chosen.script:
                print("\n".join(history.script), flush=True)
            if count % 50 == 0:
                print(summary(total, count, time.monotonic() - began), flush=True)
    print(summary(total, count, time.monotonic() - began))
    if not total.differences:
        shutil.rmtree(folder)
    else:
        print(f"the archives that differ are in {folder}: {', '.join(seeds)}")
    return 1 if total.differences else 0


def add_to(total: Found, found: Found) -> None:
    for name in (field.name for field in fields(Found) if field.name != "differences"):
        setattr(total, name, getattr(total, name) + getattr(found, name))
    total.differences += found.differences


def summary(found: Found, archives: int, seconds: float) -> str:
    return (
        f"{archives} archives in {seconds:.0f} s: {found.cuts} cuts, {found.records} records, {found.restores} restores killed "
        f"{found.crashes} times, {found.other_files} starts with another file, {found.refusals} refused; "
        f"{len(found.differences)} differences"
    )


if __name__ == "__main__":
    raise SystemExit(main())
