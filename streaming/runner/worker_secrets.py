"""Driver: what `${env:NAME}` and `${secret:scope/key}` stand for, handed to Spark's Python workers, which may not have it.

A worker gets it as an environment variable of its process when that is started: no plan, log or event holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shallow_mirror.broker.auth import secrets
from shallow_mirror.broker.auth.client_config import ClientConfig


def pass_secrets_to_workers(spark: Any, configs: Iterable[ClientConfig]) -> None:
    """Before anything is registered or run that uses them. Raises ConfigError."""
    environment = spark.sparkContext.environment
    for config in configs:
        for reference in config.references:
            if secrets.may_be_missing_elsewhere(reference):
                environment[secrets.handed_over_name(reference)] = secrets.resolve(reference)
