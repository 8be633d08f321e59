"""`shallow-mirror run CONF` that knocks at a gate at every point it passes. Arguments: CONF GATE CORES ENGINE.

Beside the points of the mirror's own observer there are two of Spark's: `Planned` when it hands over a micro-batch, and
`Returned` when that is done and Spark has yet to write so in its checkpoint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from tests.faults import without_spark
from tests.faults.knock import Knock
from tests.faults.mirror_process import WITHOUT_SPARK

from shallow_mirror import cli
from shallow_mirror.config import MirrorConfig
from shallow_mirror.sinks.micro_batch import MicroBatchSink
from shallow_mirror.streaming.mirror import Mirror


def knock_at_every_point(knock: Knock) -> None:
    copy = MicroBatchSink.__call__

    def observed(sink: MicroBatchSink, planned: Any, spark_batch_id: int) -> None:
        knock("Planned")
        copy(sink, planned, spark_batch_id)
        knock("Returned")

    MicroBatchSink.__call__ = observed  # type: ignore[method-assign]
    Mirror.from_file = lambda path: Mirror(MirrorConfig.load(path), observer=knock)  # type: ignore[method-assign]


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    conf, gate, cores, engine = arguments
    os.cpu_count = lambda: int(cores)  # a slot is used only where Spark has a core for it
    knock_at_every_point(Knock(gate))
    if engine == WITHOUT_SPARK:
        instead = without_spark.Session(workers=int(cores))
        cli._submitted_session = lambda: instead
    sys.argv = ["shallow-mirror", "run", conf]
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
