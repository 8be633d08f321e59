"""Driver: where the micro-batches of a mirror or an archive come from, by the setting and what the session can do."""

from __future__ import annotations

from typing import Any, Literal

from shallow_mirror.config.values import MicroBatchKind
from shallow_mirror.errors import ConfigError
from shallow_mirror.spark_connect import is_connect
from shallow_mirror.streaming.runs.micro_batch_loop import loop_micro_batches
from shallow_mirror.streaming.runs.micro_batch_stream import stream_micro_batches
from shallow_mirror.streaming.runs.query import MicroBatches
from shallow_mirror.streaming.sources.admission_control import MODULE, has_admission_control


def choose_micro_batches(
    setting: MicroBatchKind, spark: Any, *, transfer: Literal["direct", "through-spark"] = "direct"
) -> MicroBatches:
    """Return the kind of micro-batches of a run. With `auto` it is a stream wherever the session can run one.

    Raises ConfigError if the session cannot do it as the settings ask.
    """
    lacking = _lacking_for_stream(spark)
    kind = setting if setting != "auto" else "loop" if lacking is not None else "stream"
    if kind == "stream":
        if lacking is not None:
            raise ConfigError(f"micro_batches: stream is not possible here: {lacking}. Set micro_batches: loop, or auto")
        return stream_micro_batches
    if transfer == "through-spark":
        reason = "it was set" if setting == "loop" else lacking
        raise ConfigError(
            "read.transfer: through-spark needs micro_batches: stream, where Spark hands over rows; here they come from a loop "
            f"of the driver ({reason}). Set read.transfer: direct"
        )
    return loop_micro_batches


def _lacking_for_stream(spark: Any) -> str | None:
    """Return the reason why the session can run no stream; None if it can run one."""
    if is_connect(spark):
        return "a session of Spark Connect runs the function of foreachBatch in another process than the driver"
    if not has_admission_control():
        return f"PySpark {spark.version} has no admission control for Python data sources ({MODULE})"
    return None
