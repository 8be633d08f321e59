"""`shallow-mirror run CONF` that knocks at a gate at every point it passes. Usage: mirror_main.py CONF GATE CORES.

Beside the points of the mirror's own observer there are two of Spark's: `Planned` when it hands over a micro-batch, and
`Returned` when that is done and Spark has yet to write so in its checkpoint.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from shallow_mirror import cli
from shallow_mirror.config import MirrorConfig
from shallow_mirror.sinks.micro_batch import MicroBatchSink
from shallow_mirror.streaming.mirror import Mirror


class Knock:
    """The observer, on the driver and in tasks. Returns when the gate closes the connection."""

    def __init__(self, gate: str) -> None:
        self._gate = gate

    def __call__(self, point: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._gate)
            connection.sendall(f"{os.getpid()} {point}\n".encode())
            connection.recv(1)


def knock_at_every_point(knock: Knock) -> None:
    copy = MicroBatchSink.__call__

    def observed(sink: MicroBatchSink, planned: Any, spark_batch_id: int) -> None:
        knock("Planned")
        copy(sink, planned, spark_batch_id)
        knock("Returned")

    MicroBatchSink.__call__ = observed  # type: ignore[method-assign]
    Mirror.from_file = lambda path: Mirror(MirrorConfig.load(path), observer=knock)  # type: ignore[method-assign]


if __name__ == "__main__":
    conf, gate, cores = sys.argv[1:]
    os.cpu_count = lambda: int(cores)  # a slot is used only where Spark has a core for it
    knock_at_every_point(Knock(gate))
    sys.argv = ["shallow-mirror", "run", conf]
    cli.main()
