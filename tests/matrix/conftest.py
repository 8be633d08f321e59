from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import TwoClusters
from tests.matrix.releases import Brokers


@pytest.fixture(scope="module")
def brokers(two_clusters: TwoClusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    started = Brokers(tmp_path_factory.mktemp("releases"), two_clusters)
    yield started
    started.stop()
