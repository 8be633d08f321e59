"""Driver: whether this PySpark tells a stream of a Python data source where it is, and how much to read."""

from __future__ import annotations

import importlib.util

MODULE = "pyspark.sql.streaming.datasource"
"""Of PySpark 4.2 and newer."""


def has_admission_control() -> bool:
    """Return whether the data sources of this package can be read as a stream."""
    return importlib.util.find_spec(MODULE) is not None
