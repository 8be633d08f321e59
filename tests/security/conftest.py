from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.security.secured_cluster import SecuredCluster


@pytest.fixture(scope="session")
def secured(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with SecuredCluster(tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster
