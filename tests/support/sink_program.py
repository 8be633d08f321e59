"""A query with a DataFrame sink in a process of its own, which kills itself: `python sink_program.py JOB` (a JSON document).

Two Parquet files of `rows` are a micro-batch. With `point` the process is killed when the sink passes it for the `passes`-th time, a
task or the driver, whichever does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from shallow_mirror import ExactlyOnceKafkaSink, local_session


class KillDriver:
    """Observer. `marks`: a folder that counts how often the point was passed, in whatever process."""

    def __init__(self, point: str, passes: int, marks: str, driver: int) -> None:
        self._point, self._passes, self._marks, self._driver = point, passes, marks, driver

    def __call__(self, point: str) -> None:
        if point != self._point:
            return
        marks = Path(self._marks)
        (marks / f"{len(list(marks.iterdir()))}-{os.getpid()}").touch()
        if len(list(marks.iterdir())) >= self._passes:
            os.kill(self._driver, signal.SIGKILL)
            signal.pause()  # the task goes no further than its driver


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = local_session("sink", cores=2, log_file=Path(job["folder"]) / "spark.log", archives_classes=True)
    observer = KillDriver(job["point"], job["passes"], job["marks"], os.getpid()) if job.get("point") else lambda _point: None
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    with ExactlyOnceKafkaSink(observer=observer, tables=str(Path(job["folder"]) / "tables"), **job["sink"]) as sink:
        rows = spark.readStream.schema("value string, partition int").option("maxFilesPerTrigger", 2).parquet(job["rows"])
        query = (
            rows.select("value", "partition")
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(Path(job["folder"]) / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
