"""Topic administration where the cluster, or the client library, does not answer: tried again, and said so."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from typing import Any

import pytest

from shallow_mirror.broker.admin import topic_admin
from shallow_mirror.broker.admin.topic_admin import TopicSpec, add_partitions, ensure_topics
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.errors import RetriableError

SPEC = TopicSpec("t", 1, None, {})


def test_a_broker_that_accepts_connections_and_is_silent_is_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ClientConfig.from_properties({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"})
        with pytest.raises(RetriableError, match="target topic t was not created"):
            ensure_topics(client, [SPEC], timeout_s=0.3)
        with pytest.raises(RetriableError, match="target topic t was not given more partitions"):
            add_partitions(client, {"t": 2}, timeout_s=0.3)


def test_a_client_that_is_later_than_it_promised_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        def __init__(self, _settings: object) -> None: ...

        def create_topics(self, *_: Any, **__: Any) -> dict[str, Future[None]]:
            return {"t": Future()}

    monkeypatch.setattr(topic_admin, "AdminClient", Late)
    client = ClientConfig.from_properties({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(RetriableError, match="REQUEST_TIMED_OUT: target topic t was not created within 0 s"):
        ensure_topics(client, [SPEC], timeout_s=0.0)
