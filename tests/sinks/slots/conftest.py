from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sinks.spark_rows import rows_of
from tests.sinks.two_strict_clusters import Clusters, run_kafka_slot

from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.slots import slot_task
from shallow_mirror.types import PlannedRange


@pytest.fixture(params=["direct", "through Spark"])
def run(request: pytest.FixtureRequest, clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SlotResult]:
    """One slot, whichever way its batches take."""
    if request.param == "direct":
        return clusters.run

    def through_spark(job: KafkaSlotJob, *ranges: PlannedRange) -> SlotResult:
        monkeypatch.setattr(slot_task, "_input_partition", lambda: 3)
        rows = rows_of(clusters, *ranges, isolates=job.isolates)
        return run_kafka_slot(job, iter(rows), is_planned_ranges=False)

    return through_spark
