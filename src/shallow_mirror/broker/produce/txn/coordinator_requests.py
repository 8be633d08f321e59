"""Everywhere: requests to the coordinator of a group or transactional id, repeated until a definite answer or the deadline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from shallow_mirror.broker.cluster.cluster import NEW_TOPIC_PATIENCE_MS, Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.begun_call import BEGUN, BegunCall, DecodedCall
from shallow_mirror.broker.net.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    NOT_COORDINATOR,
    ErrorClass,
    error_class,
    error_name,
    refusal,
)
from shallow_mirror.broker.net.requests import call
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    ConfigError,
    ProducerEpochFencedError,
    RetriableError,
)

LOOK_FOR_COORDINATOR = frozenset({COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})
"""Codes after which the coordinator has to be found again."""


class BegunRequest(DecodedCall):
    """A request to a coordinator that was sent, and whose response is received later. It counts as the first try."""

    def __init__(
        self,
        cluster: Cluster,
        kind: CoordinatorKind,
        key: str,
        api: str,
        fields: Mapping[str, Any],
        deadline: Deadline,
        *,
        purpose: str = BEGUN,
    ) -> None:
        """Send it. `purpose`: of the connection; whose other responses have to be received before this one, if any."""
        self.kind, self.key, self.api, self.fields = kind, key, api, fields
        attempt = deadline.sooner(cluster.config.request_timeout_ms)
        super().__init__(lambda: cluster.coordinator(kind, key, attempt, purpose), api, attempt, fields)


def ask_coordinator(
    cluster: Cluster,
    kind: CoordinatorKind,
    key: str,
    api: str,
    code_of: Callable[[Any], int],
    deadline: Deadline,
    *,
    begun: BegunCall[Any] | None = None,
    brief: Collection[int] = (),
    **fields: Any,
) -> Any:
    """Repeat a request until the response is not retriable. The caller handles its code. Raises RetriableError.

    `begun`: the same request, whose response comes first. `brief`: retriable codes that are returned after NEW_TOPIC_PATIENCE_MS.
    """
    patience, tries = deadline.sooner(NEW_TOPIC_PATIENCE_MS), 0
    while True:
        try:
            attempt = deadline.sooner(cluster.config.request_timeout_ms)
            if begun is not None and tries == 0:
                response = begun.receive(attempt)
            else:
                response = call(cluster.coordinator(kind, key, attempt), api, attempt, **fields)
            code = code_of(response)
            if code in LOOK_FOR_COORDINATOR:
                cluster.forget_coordinator(kind, key)
            if code == 0 or error_class(code) not in (ErrorClass.RETRIABLE, ErrorClass.UNKNOWN):
                return response
            if code in brief and patience.is_over():
                return response
            reason = RetriableError(error_name(code), f"{api} of {key}")
        except RetriableError as error:
            cluster.forget_coordinator(kind, key)
            reason = error
        cluster.pause(tries, deadline)
        tries += 1
        if deadline.is_over():
            raise RetriableError(reason.error_name, f"gave up {api} of {key}: {reason.detail}") from reason


def raise_for_code(code: int, api: str, what: str, *, topic: str = "", key: str = "") -> None:
    """Raise ProducerEpochFencedError, ConfigError or RetriableError for a code; nothing for 0."""
    if code == 0:
        return
    if error_class(code) is ErrorClass.FENCED:
        raise ProducerEpochFencedError(error_name(code), what)
    if error_class(code) is ErrorClass.DEFINITE:
        raise ConfigError(f"{what}: the target answered {refusal(code, api, topic=topic, key=key)}")
    raise RetriableError(error_name(code), what)
