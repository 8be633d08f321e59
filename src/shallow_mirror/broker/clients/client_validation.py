"""Everywhere: validation of the settings of the batch clients: all problems at once, each with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.errors import ConfigError

_ARGUMENTS = {
    "isolation.level": "give isolation=IsolationLevel.… to BatchConsumer",
    "auto.offset.reset": 'use "earliest" or "latest" in BatchConsumer.assign()',
    "group.id": "batch clients have no groups; keep offsets yourself and give them to BatchConsumer.assign()",
    "transactional.id": "give transactional_id=… to BatchProducer",
    "transaction.timeout.ms": "give transaction_timeout_ms=… to BatchProducer",
    "max.in.flight.requests.per.connection": "give in_flight_requests=… to BatchProducer",
    "max.in.flight": "give in_flight_requests=… to BatchProducer",
    "message.timeout.ms": "give delivery_timeout_ms=… to BatchProducer",
    "delivery.timeout.ms": "give delivery_timeout_ms=… to BatchProducer",
    "fetch.max.bytes": "give max_bytes to BatchConsumer.poll_batches()",
    "max.partition.fetch.bytes": "give max_bytes to BatchConsumer.poll_batches()",
    "acks": "batches are always acknowledged by all in-sync replicas; remove it",
    "enable.idempotence": "a BatchProducer is always idempotent; remove it",
}
"""Properties of librdkafka and Java that batch clients take another way."""


def client_config(client: ClientConfig | Mapping[str, object]) -> ClientConfig:
    """Return the settings of a client. Raises ConfigError with every problem of every property."""
    if isinstance(client, ClientConfig):
        return client
    problems = [f"client.{name}: {_ARGUMENTS[name]}" for name in client if name in _ARGUMENTS]
    try:
        own = {name: value for name, value in client.items() if name not in _ARGUMENTS}
        config = ClientConfig.from_properties(own, allows_literal_secrets=True)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    raise_problems(problems)
    return config


def number_problems(name: str, value: object, least: int, most: int | None = None) -> list[str]:
    """Return a sentence if `value` is no number from `least` to `most`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return []
    limits = f"at least {least}" if most is None else f"{least} to {most}"
    return [f"{name}: {value!r} is not a number of {limits}"]


def raise_problems(*problems: Sequence[str]) -> None:
    all_problems = [problem for group in problems for problem in group]
    if all_problems:
        raise ConfigError(all_problems)
