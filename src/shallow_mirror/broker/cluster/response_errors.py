"""Everywhere: error codes of responses as exceptions that name the cluster."""

from __future__ import annotations

from shallow_mirror.broker.net.error_codes import TOPIC_AUTHORIZATION_FAILED, ErrorClass, error_class, error_name, refusal
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError, TopicAccessError


class ResponseErrors:
    """Errors of one cluster. `cluster_name` is for messages."""

    def __init__(self, cluster_name: str) -> None:
        self._cluster_name = cluster_name

    def raise_for(self, code: int, what: str, api: str, *, topic: str = "", key: str = "") -> None:
        """Raise what `error_of` returns; return for code 0."""
        error = self.error_of(code, what, api, topic=topic, key=key)
        if error is not None:
            raise error

    def error_of(self, code: int, what: str, api: str, *, topic: str = "", key: str = "") -> MirrorError | None:
        """Return RetriableError for what may pass, ConfigError for what a person must change, None for 0."""
        if code == 0:
            return None
        if error_class(code) is not ErrorClass.DEFINITE:
            return RetriableError(error_name(code), what)
        text = f"{what}: {self._cluster_name} answered {refusal(code, api, topic=topic, key=key)}"
        return TopicAccessError(text, [topic]) if code == TOPIC_AUTHORIZATION_FAILED else ConfigError(text)
