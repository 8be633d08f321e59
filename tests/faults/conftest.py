from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.faults.cases")

from tests.faults import launch  # noqa: E402 - what it imports may import the module above


@pytest.fixture(scope="module", autouse=True)
def no_fork_server_is_left() -> Iterator[None]:
    yield
    launch.stop_fork_server()
