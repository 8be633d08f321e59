"""Tasks that run in the process of a test, as if it were a worker of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients


@contextmanager
def own_worker_clients() -> Iterator[None]:
    """Let tasks of the block keep their clusters until its end."""
    kept: dict[Any, Cluster] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_clients, "_clusters", kept)
        patch.setattr(worker_clients, "freeze_imports_once", lambda: None)
        yield
    for cluster in kept.values():
        cluster.close()
