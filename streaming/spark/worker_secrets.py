"""Driver: the values of `${env:NAME}` and `${secret:scope/key}` for Spark's Python workers, which may not have them.

A worker gets them as environment variables of its process when it is started: no plan, log or event contains them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from shallow_mirror.broker.auth import secrets


class WithReferences(Protocol):
    """Settings of a cluster or of an object store."""

    @property
    def references(self) -> frozenset[str]: ...


def pass_secrets_to_workers(spark: Any, configs: Iterable[WithReferences]) -> None:
    """Set the variables, before anything is registered or run that uses them. Raises ConfigError."""
    environment = spark.sparkContext.environment
    for config in configs:
        for reference in config.references:
            if secrets.may_be_missing_elsewhere(reference):
                environment[secrets.handed_over_name(reference)] = secrets.resolve(reference)
