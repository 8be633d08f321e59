"""The scripts of seeds on two real brokers, which all rounds share: a line for each, and one for all."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.launch import stop_fork_server
from tests.operators.actions import Action, Idle
from tests.operators.real_world import opened_real_world
from tests.operators.scripts import Done, perform_in, script_of

from shallow_mirror.local_kafka import start_clusters, stop_clusters

_EVENT_CHARACTERS = 500


def on_brokers(seeds: Sequence[int], minutes: float | None, classes: Sequence[str] = ()) -> int:
    """Perform the scripts of these seeds, none of which begins after so many minutes; return the exit code."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that brokers and files do not outlive this process
    began, count, total, differing = time.monotonic(), 0, Done(None, ()), list[int]()
    with tempfile.TemporaryDirectory(prefix="operators-") as folder:
        nodes = start_clusters(Path(folder), 2)
        try:
            for seed in seeds:
                if minutes is not None and time.monotonic() - began > minutes * 60:
                    break
                round_began = time.monotonic()
                done = perform_on(
                    nodes[0].bootstrap, nodes[1].bootstrap, script_of(seed, classes), Path(folder, "world"), f"-{seed}"
                )
                count += 1
                total.add(done)
                print(f"seed {seed}: {done.finding or 'OK'}; {_counts(done)}, {time.monotonic() - round_began:.1f} s", flush=True)
                if done.finding is not None:
                    differing.append(seed)
                    print("\n".join(f"    {event[:_EVENT_CHARACTERS]}" for event in done.events), flush=True)
        finally:
            stop_clusters(nodes)
            stop_fork_server()
    result = f"FAIL, seeds that differ: {', '.join(map(str, differing))}" if differing else "PASS"
    print(f"RESULT {result}; {count} rounds on real brokers in {time.monotonic() - began:.0f} s: {_counts(total)}")
    return 1 if differing else 0


def perform_on(source: str, target: str, script: Sequence[Action], folder: Path, suffix: str) -> Done:
    """Perform a script in a new world on these clusters, without the hours in which nothing happens."""
    with opened_real_world(folder, source, target, suffix) as world:
        return perform_in(world, [action for action in script if not isinstance(action, Idle)])


def _counts(done: Done) -> str:
    return f"{done.runs} runs, {done.kills} killed, {done.remedies} remedies, {done.records} records"
