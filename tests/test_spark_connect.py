"""What an error of Spark Connect says of its server. The server itself: tests/streaming/runs/test_spark_connect.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from shallow_mirror import spark_connect
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.checkpoints.tables.backends.spark_backend import SparkBackend
from shallow_mirror.errors import OutcomeUnknownError, SparkLostError
from shallow_mirror.spark_connect import JVM_USED_EVERY_S, USED_EVERY_S, OpenSessions, lost_server

CLOSED = "(org.apache.spark.SparkSQLException) [INVALID_HANDLE.SESSION_CLOSED] The handle ff09b61b is invalid.\nSQLSTATE: HY000"


class OfConnectError(PySparkException):  # type: ignore[misc]
    """As the classes of pyspark.errors.exceptions.connect, which need grpc."""

    __module__ = "pyspark.errors.exceptions.connect"


@pytest.mark.parametrize(
    "text", [CLOSED, "[RETRIES_EXCEEDED] The maximum number of retries has been exceeded.", "StatusCode.UNAVAILABLE"]
)
def test_a_closed_session_and_a_server_that_does_not_answer_are_lost(text: str) -> None:
    lost = lost_server(OfConnectError(text))
    assert lost is not None
    assert str(lost).endswith("start again with a new session")
    assert "\n" not in str(lost)


@pytest.mark.parametrize("error", [OfConnectError("[TABLE_OR_VIEW_NOT_FOUND] a"), PySparkException(CLOSED), ValueError(CLOSED)])
def test_other_errors_are_not_of_a_lost_server(error: Exception) -> None:
    assert lost_server(error) is None


@pytest.mark.parametrize(("text", "kind"), [(CLOSED, SparkLostError), ("disk full", OutcomeUnknownError)])
def test_tables_end_a_run_whose_session_is_closed_and_repeat_what_else_fails(text: str, kind: type[Exception]) -> None:
    session: Any = SimpleNamespace(
        newSession=lambda: session, conf=SimpleNamespace(getAll={}, get=lambda *_: None, isModifiable=lambda _: False)
    )
    backend = SparkBackend(TableLocation("/tables"), session)
    with pytest.raises(kind), backend.raised("read", "controls"):
        raise OfConnectError(text)


@pytest.mark.parametrize(
    ("module", "every_s"), [("pyspark.sql.connect.session", USED_EVERY_S), ("pyspark.sql", JVM_USED_EVERY_S)]
)
def test_an_idle_session_is_used_at_intervals_and_an_error_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, module: str, every_s: float
) -> None:
    now_s, asked = [0.0], list[float]()
    monkeypatch.setattr(spark_connect, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    session_class = type("Session", (), {"__module__": module})
    session: Any = session_class()
    session.conf = SimpleNamespace(get=lambda _: asked.append(now_s[0]))
    sessions = OpenSessions(session)
    for now_s[0] in (every_s, every_s + 1, every_s + 2, 2 * every_s + 2):
        sessions.use()
    assert asked == [every_s + 1, 2 * every_s + 2]

    def refuse(_: str) -> None:
        raise ConnectionRefusedError

    session.conf = SimpleNamespace(get=refuse)
    now_s[0] = 4 * every_s
    with pytest.raises(ConnectionRefusedError):
        sessions.use()
