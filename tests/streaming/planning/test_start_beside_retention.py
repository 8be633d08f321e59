"""Start offsets of a mirror while retention deletes records at the source."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.fakes.changes import after
from tests.fakes.strict_broker import StrictCluster
from tests.support.planned_sources import _config
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.streaming.planning import PlannerConfig, SourceOffsets


def _deadline() -> Deadline:
    return Deadline.after_ms(5_000, time.monotonic)


def test_a_start_that_retention_deletes_before_it_is_read_is_looked_for_again(tmp_path: Path) -> None:
    with StrictCluster() as fake:
        fake.create_topic("orders")
        fake.seed(("orders", 0), *[batch(base, 2, timestamp=1_000 + base) for base in range(0, 10, 2)])
        log = fake.log("orders")
        cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": fake.bootstrap}))
        planner = SourceOffsets(PlannerConfig.of_mirror(_config(tmp_path, start="1970-01-01T00:00:01.002Z")), cluster)
        fake.change("Fetch", after(lambda: log.delete_records_before(6)))
        with pytest.raises(RetriableError, match="orders-0: expected offset 2, source log starts at 6"):
            planner.start_offsets({}, _deadline())
        assert list(planner.start_offsets({}, _deadline()).values()) == [6]
        cluster.close()
