"""Sessions of Spark Connect: which session is one, and how they stay open while a run has nothing to do."""

from __future__ import annotations

import importlib
import time
from typing import Any

USED_EVERY_S = 600.0
"""A server closes a session that was not used for `spark.connect.session.manager.defaultSessionTimeout`, by default an hour."""
_ANY_SETTING = "spark.sql.session.timeZone"


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
