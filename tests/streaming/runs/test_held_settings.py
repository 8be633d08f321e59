"""Copies of compacted topics are created without compaction, which they get once the map has passed what the source held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster
from tests.support import mirror_runs as runs
from tests.support.record_batches import batch
from tests.verify.mirrored import kafka_text

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.kafka.targets.target_topic_policy import configs_of_new
from shallow_mirror.streaming.runs import held_settings
from shallow_mirror.streaming.runs.held_settings import HeldSettings
from shallow_mirror.types import SourcePartition, TargetPartition

COMPACTED: dict[str, Any] = {"cleanup.policy": "compact", "retention.ms": "5"}


class Copy:
    """Two clusters and the tables of a mirror; `offset`: how far its map is in `orders`."""

    def __init__(self, folder: Path, source: StrictCluster, target: StrictCluster, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.source, self.target = folder, source, target
        self.offset = 0
        self.former: dict[SourcePartition, Any] = {}
        """Positions of a source topic that had the name before."""
        self.copied_to = TargetPartition("orders", "", 0)
        self.clusters = [Cluster(self.config().source.client), Cluster(self.config().target.client)]
        patch.setattr(
            held_settings, "OffsetMap", SimpleNamespace(open=lambda *_, **__: SimpleNamespace(positions=self._positions))
        )

    def config(self, **topics: Any) -> Any:
        return runs.config(self.folder, self.source.bootstrap, self.target.bootstrap, ["orders"], topics=topics)

    def run(self, **topics: Any) -> HeldSettings:
        """Return what the next run of the mirror has."""
        storage = TableStorage(self.config().table_location)
        return HeldSettings(self.config(**topics), self.clusters[0], storage, run_epoch=1)

    def create(self, held: HeldSettings) -> Mapping[str, str]:
        """Create the copy of `orders`; return its settings."""
        settings = configs_of_new(COMPACTED, is_preserved=False)
        spec = held.hold({"orders": TopicSpec("orders", 1, None, settings)})["orders"]
        configs: dict[str, Any] = dict(spec.configs)
        self.target.create_topic("orders", 1, **configs)
        self.copied_to = TargetPartition("orders", kafka_text(self.target.topic_ids["orders"]), 0)
        return self.settings

    @property
    def settings(self) -> dict[str, str]:
        return self.target.log("orders").configs

    def release(self, held: HeldSettings) -> list[str]:
        source, target = self.clusters
        return list(held.release(source, target, Deadline.after_ms(5_000, lambda: 0.0)).values())

    def _positions(self) -> dict[SourcePartition, Any]:
        return self.former | {self.partition: SimpleNamespace(offset=self.offset, target=self.copied_to)}

    @property
    def partition(self) -> SourcePartition:
        return SourcePartition("orders", kafka_text(self.source.topic_ids["orders"]), 0)


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copy]:
    with StrictCluster(cluster_id="east-id") as source, StrictCluster(cluster_id="west-id") as target:
        source.create_topic("orders", 1, **COMPACTED)
        source.seed(("orders", 0), batch(0, 5))
        made = Copy(tmp_path, source, target, monkeypatch)
        yield made
        for cluster in made.clusters:
            cluster.close()


def test_a_copy_is_compacted_once_what_the_source_held_is_copied_also_by_a_later_run(copy: Copy) -> None:
    settings = copy.create(copy.run())
    assert [settings[name] for name in ("cleanup.policy", "retention.ms", "retention.bytes")] == ["delete", "-1", "-1"]
    copy.source.seed(("orders", 0), batch(5, 5))
    copy.offset = 4
    later = copy.run()
    assert copy.release(later) == []
    assert copy.settings["cleanup.policy"] == "delete"
    copy.offset = 5
    assert copy.release(later) == []
    assert (copy.settings["cleanup.policy"], copy.settings["retention.ms"]) == ("compact", "5")
    copy.settings["cleanup.policy"], copy.settings["retention.ms"] = "delete", "-1"
    assert copy.release(copy.run()) == []
    assert copy.settings["cleanup.policy"] == "delete", "an operator has the last word"


def test_what_an_operator_has_set_meanwhile_stays(copy: Copy) -> None:
    held = copy.run()
    copy.create(held)
    copy.settings["retention.ms"] = "1000"
    copy.offset = 5
    assert copy.release(held) == []
    assert (copy.settings["cleanup.policy"], copy.settings["retention.ms"]) == ("delete", "1000")


def test_a_copy_that_may_not_be_changed_is_reported_until_it_is(copy: Copy) -> None:
    held = copy.run()
    copy.create(held)
    copy.offset = 5
    copy.target.change_always("IncrementalAlterConfigs", error(29))
    expected = (
        "target topic orders cannot be compacted like orders: TOPIC_AUTHORIZATION_FAILED: grant AlterConfigs on topic orders"
    )
    assert [copy.release(held) for _ in range(2)] == [[expected]] * 2
    copy.target.change_always("IncrementalAlterConfigs", None)
    assert copy.release(held) == []
    assert copy.settings["cleanup.policy"] == "compact"


def test_the_copy_of_an_empty_or_preserved_topic_is_compacted_from_the_beginning(copy: Copy) -> None:
    preserved = copy.run(offsets={".*": "preserved"})
    assert copy.create(preserved)["cleanup.policy"] == "compact"
    copy.target.delete_topic("orders")
    copy.source.delete_topic("orders")
    copy.source.create_topic("orders", 1, **COMPACTED)
    assert copy.create(copy.run())["cleanup.policy"] == "compact"
    assert list(copy.folder.iterdir()) == []


def test_a_copy_that_was_deleted_keeps_no_other_topic_waiting(copy: Copy) -> None:
    held = copy.run()
    copy.create(held)
    copy.offset = 5
    copy.target.delete_topic("orders")
    assert copy.release(held) == []


def test_a_topic_of_others_that_has_the_name_of_a_deleted_copy_is_not_compacted(copy: Copy) -> None:
    held = copy.run()
    configs: dict[str, Any] = {**copy.create(held)}
    copy.offset = 5
    copy.target.delete_topic("orders")
    copy.target.create_topic("orders", 1, **configs)
    assert copy.release(held) == []
    assert (copy.settings["cleanup.policy"], copy.settings["retention.ms"]) == ("delete", "-1")


def test_the_copy_of_a_source_topic_that_was_created_again_is_compacted_once_what_that_held_is_copied(copy: Copy) -> None:
    """With read.on_data_loss: continue. Nothing more is copied of the former topic."""
    held = copy.run()
    copy.create(held)
    copy.former = {copy.partition: SimpleNamespace(offset=3, target=copy.copied_to)}
    copy.source.delete_topic("orders")
    copy.source.create_topic("orders", 1, **COMPACTED)
    copy.source.seed(("orders", 0), batch(0, 8))
    for copy.offset, policy in ((0, "delete"), (7, "delete"), (8, "compact")):
        assert copy.release(held) == []
        assert copy.settings["cleanup.policy"] == policy


def test_a_source_that_is_not_compacted_any_more_is_followed_as_it_is_now(copy: Copy) -> None:
    held = copy.run()
    copy.create(held)
    copy.source.log("orders").configs["cleanup.policy"] = "delete"
    copy.offset = 5
    assert copy.release(held) == []
    assert (copy.settings["cleanup.policy"], copy.settings["retention.ms"]) == ("delete", "5")
