"""New partitions get their first rows between two micro-batches, however close these follow each other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.checkpoints.map_rows import SOURCE, run_of
from tests.sinks.micro_batches import micro_batch_sink, planned_frame
from tests.sinks.two_strict_clusters import Clusters

from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.sinks.micro_batches import MicroBatchSink
from shallow_mirror.types import PlannedRange

NOTHING_READ = SlotResult(0, None, ())


def sink_of(folder: Path, clusters: Clusters, register: Callable[[], None]) -> MicroBatchSink:
    owner = LedgerOwner.take_over(
        str(folder), name="m", source_cluster_id="S", target_cluster_id="T", run=run_of("run"), now_ms=lambda: 1
    )
    owner.settle()

    def perform(action: actions.Action, _deadline: object) -> Any:
        return owner.next_decision() if isinstance(action, actions.TakeDecision) else None

    performer = SimpleNamespace(perform=perform, availability=TargetAvailability())
    return micro_batch_sink(owner, performer, clusters.job({}), register=register)


def planned(result: SlotResult = NOTHING_READ, run: Callable[[], None] = lambda: None) -> Any:
    return planned_frame(itertools.repeat([result]), run=run)


def test_new_partitions_are_registered_in_front_of_each_micro_batch_and_never_while_one_runs(
    tmp_path: Path, clusters: Clusters
) -> None:
    steps: list[str] = []
    sink = sink_of(tmp_path, clusters, lambda: steps.append("register"))

    def runs() -> None:
        steps.append("copy")
        other = threading.Thread(target=sink.register_if_idle)
        other.start()
        other.join()

    for number in range(3):
        sink(planned(run=runs), number)
    assert steps == ["register", "copy"] * 3
    sink.register_if_idle()
    assert steps[6:] == ["register"]


def test_a_registration_that_fails_ends_the_query_before_anything_is_copied(tmp_path: Path, clusters: Clusters) -> None:
    def refuse() -> None:
        raise ConfigError("target topic late does not exist")

    sink, copied = sink_of(tmp_path, clusters, refuse), list[str]()
    with pytest.raises(ConfigError):
        sink(planned(run=lambda: copied.append("copied")), 0)
    assert isinstance(sink.failure, ConfigError)
    assert copied == []


def test_a_planned_partition_that_the_map_does_not_know_begins_the_query_again(tmp_path: Path, clusters: Clusters) -> None:
    unknown = PlannedRange(slot=0, source=SOURCE, start=3, end=5, bytes_per_offset=1.0)
    sink = sink_of(tmp_path, clusters, lambda: None)
    with pytest.raises(RetriableError, match="orders-0 is planned, but is not in the offset map"):
        sink(planned(SlotResult(0, None, (), unknown=(unknown,))), 0)
