"""Sessions of Spark Connect: which session is one, how they stay open while a run has nothing to do, and when they are lost."""

from __future__ import annotations

import importlib
import re
import time
from typing import Any

from shallow_mirror.errors import SparkLostError

USED_EVERY_S = 600.0
"""A server closes a session that was not used for `spark.connect.session.manager.defaultSessionTimeout`, by default an hour."""
JVM_USED_EVERY_S = 5.0
"""Without records to copy a loop calls nothing else of Spark. A call takes less than a millisecond."""
_ANY_SETTING = "spark.sql.session.timeZone"
_SERVER_GONE = re.compile(
    r"StatusCode\.UNAVAILABLE|RETRIES_EXCEEDED|INVALID_HANDLE\.(SESSION_(CHANGED|CLOSED|NOT_FOUND)|OPERATION_\w+)|SESSION_NOT_SAME"
    r"|NO_ACTIVE_SESSION|failed to connect to all addresses|Cannot invoke RPC"
)


def is_connect(spark: Any) -> bool:
    """Return whether this is a session of Spark Connect."""
    module = type(spark).__module__
    if module.startswith("pyspark.sql.connect"):
        return True
    return module.startswith("pyspark.") and bool(importlib.import_module("pyspark.sql.utils").is_remote())


class OpenSessions:
    """Sessions that are used at intervals: a server keeps those of Spark Connect open, and the end of a JVM here is noticed."""

    def __init__(self, *sessions: Any) -> None:
        self._sessions: list[tuple[Any, float]] = []
        self._used_at_s: list[float] = []
        for session in sessions:
            self.add(session)

    def add(self, session: Any) -> None:
        self._sessions.append((session, USED_EVERY_S if is_connect(session) else JVM_USED_EVERY_S))
        self._used_at_s.append(time.monotonic())

    def use(self) -> None:
        """Ask for a setting of each session, unless that was done within its interval. Raises as Spark."""
        now_s = time.monotonic()
        for number, (session, every_s) in enumerate(self._sessions):
            if now_s - self._used_at_s[number] > every_s:
                self._used_at_s[number] = now_s
                session.conf.get(_ANY_SETTING)


def lost_server(error: Exception) -> SparkLostError | None:
    """Return what to raise if an error of Spark says that the server, or its state of this session, is gone; None if not."""
    is_of_connect = type(error).__module__.startswith("pyspark.errors.exceptions.connect") or "RETRIES_EXCEEDED" in str(error)
    if not is_of_connect or _SERVER_GONE.search(str(error)) is None:
        return None
    reason = str(error).partition("\n")[0]
    return SparkLostError(
        f"the server of Spark Connect ended the session or does not answer ({reason}): it was killed or restarted. Nothing "
        "is lost: start again with a new session"
    )
