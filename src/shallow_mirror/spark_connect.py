"""Sessions of Spark Connect: which session is one, how they stay open while a run has nothing to do, and when they are lost."""

from __future__ import annotations

import importlib
import re
import time
from typing import Any

from shallow_mirror.errors import SparkLostError

USED_EVERY_S = 600.0
"""A server closes a session that was not used for `spark.connect.session.manager.defaultSessionTimeout`, by default an hour."""
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
    """Sessions to be kept open; those in this process stay open by themselves."""

    def __init__(self, *sessions: Any) -> None:
        self._sessions: list[Any] = []
        self._used_at_s = time.monotonic()
        for session in sessions:
            self.add(session)

    def add(self, session: Any) -> None:
        if is_connect(session):
            self._sessions.append(session)

    def use(self) -> None:
        """Ask for a setting of each session, unless that was done less than `USED_EVERY_S` ago. Raises as Spark."""
        if self._sessions and time.monotonic() - self._used_at_s > USED_EVERY_S:
            self._used_at_s = time.monotonic()
            for session in self._sessions:
                session.conf.get(_ANY_SETTING)


def lost_server(error: Exception) -> SparkLostError | None:
    """Return what to raise if an error of Spark says that the server, or its state of this session, is gone; None if not."""
    is_of_connect = type(error).__module__.startswith("pyspark.errors.exceptions.connect") or "RETRIES_EXCEEDED" in str(error)
    if not is_of_connect or _SERVER_GONE.search(str(error)) is None:
        return None
    reason = str(error).partition("\n")[0]
    return SparkLostError(
        f"the server of Spark Connect ended the session or does not answer ({reason}): it was killed or restarted. Nothing "
        "is lost: start the mirror again with a new session"
    )
