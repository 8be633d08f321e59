"""The Spark session of a command, where it needs one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shallow_mirror.commands.import_blocker import ImportBlocker

if TYPE_CHECKING:
    from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig


@contextlib.contextmanager
def session_for(config: MirrorConfig | ArchiveConfig | RestoreConfig, *, is_writing: bool = False) -> Iterator[Any]:
    """Yield the session; None for tables that need no Spark, and then nothing of it is imported."""
    if not is_writing and not any(location.is_read_by_spark for location in config.table_locations):
        yield None
        return
    ImportBlocker.remove()
    from shallow_mirror.streaming.runner.spark_session import session_for_tables

    with session_for_tables(config, submitted_session(), is_writing=is_writing) as spark:
        yield spark


def submitted_session() -> Any:
    """Return the session of `spark-submit`; None when the mirror builds its own."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
