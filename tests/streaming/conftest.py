from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import cloudpickle
from tests.support import mirror_runs


@pytest.fixture
def crash_points() -> Iterator[None]:
    """`CrashAt` travels to Spark's workers, which cannot import the tests."""
    cloudpickle.register_pickle_by_value(mirror_runs)
    yield
    cloudpickle.unregister_pickle_by_value(mirror_runs)
