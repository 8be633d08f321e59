from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults import launch


@pytest.fixture(scope="module", autouse=True)
def no_fork_server_is_left() -> Iterator[None]:
    yield
    launch.stop_fork_server()
