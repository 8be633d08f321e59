"""Driver: how long a client of Spark Connect calls a server that does not answer."""

from __future__ import annotations

import warnings
from typing import Any

SERVER_RETRIES = 6
"""Of a call. PySpark waits 50 ms before the first and four times as long before each next one: 70 s in all."""


def bound_server_retries(spark: Any) -> None:
    """Let calls of the session fail after SERVER_RETRIES; PySpark would retry for ten minutes and longer.

    Retry policies that the caller has set for the session stay.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    policies = spark.client.get_retry_policies()
    is_default = [type(policy) for policy in policies] == [DefaultPolicy]
    if is_default and policies[0].max_retries == DefaultPolicy().max_retries:
        spark.client.set_retry_policies([DefaultPolicy(max_retries=SERVER_RETRIES)])
    # PySpark warns of what the error of the run says.
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)
