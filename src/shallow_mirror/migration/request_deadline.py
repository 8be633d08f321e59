"""Driver: how long one request of a migration may take: of its plan, its permissions and its steps."""

from __future__ import annotations

import time

from shallow_mirror.deadline import Deadline

REQUEST_MS = 20_000


def request_deadline() -> Deadline:
    return Deadline.after_ms(REQUEST_MS, time.monotonic)
