"""Fill $SHALLOW_MIRROR_CACHE while an image is built, so that a start needs no network: Delta's jars, an archive of classes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from shallow_mirror import delta_jars, local_session


def archive_classes() -> None:
    """Run a query that has the parts of a mirror's query, so that the archive holds the classes that a mirror loads."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = local_session(
            "shallow-mirror image", cores=1, log_file=folder / "spark.log", archives_classes=True, waits_for_archive=True
        )
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
        writer = rows.writeStream.foreachBatch(lambda batch, _number: batch.mapInArrow(lambda rows: rows, batch.schema).toArrow())
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="1 hour").start()
        while query.lastProgress is None and query.exception() is None:
            query.awaitTermination(1)
        query.stop()  # between two micro-batches: one that is stopped prints a stack trace
        spark.stop()


if __name__ == "__main__":
    delta_jars()
    archive_classes()
