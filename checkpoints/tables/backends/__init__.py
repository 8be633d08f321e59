"""The backends of the tables: deltalake without a JVM, and Delta on Spark."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.tables.backends.spark_sql import (
        first_line as first_line,
        name_in_sql as name_in_sql,
        spark_errors as spark_errors,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
