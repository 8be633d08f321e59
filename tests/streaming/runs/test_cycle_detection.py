from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs

from shallow_mirror.config import exclude_own_targets
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka import Origin
from shallow_mirror.streaming.runs import cycle_detection
from shallow_mirror.streaming.runs.cycle_detection import CycleDetector

BROKER = "127.0.0.1:1"


def _config(folder: Path, **topics: Any) -> Any:
    return runs.config(folder, BROKER, BROKER, [".*"], topics=topics)


def _within_one(config: Any) -> CycleDetector:
    return CycleDetector(config, source_cluster_id="one", target_cluster_id="one")


def test_within_one_cluster_the_mirrors_own_targets_are_no_sources(tmp_path: Path) -> None:
    config = exclude_own_targets(_config(tmp_path, target_name="{source}.{topic}"), is_same_cluster=True)
    assert config.topics.is_included("orders")
    assert not config.topics.is_included("east.orders")


def test_between_two_clusters_nothing_is_left_out(tmp_path: Path) -> None:
    config = _config(tmp_path)
    assert exclude_own_targets(config, is_same_cluster=False) is config


def test_with_the_source_in_names_what_comes_from_the_target_is_no_source(tmp_path: Path) -> None:
    config = exclude_own_targets(_config(tmp_path, target_name="{source}.{topic}"), is_same_cluster=False)
    assert [config.topics.is_included(topic) for topic in ("orders", "east.orders", "west.orders")] == [True, True, False]


def test_a_mirror_of_topics_onto_themselves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source east and target west are one cluster, and topics\.target_name"):
        exclude_own_targets(_config(tmp_path), is_same_cluster=True)


def test_topics_that_would_be_written_to_each_other_are_refused_together(tmp_path: Path) -> None:
    config = _config(tmp_path, target_name="{source}.{topic}")
    with pytest.raises(ConfigError) as caught:
        _within_one(config).require_no_cycles(["a", "east.a", "b", "east.b"])
    assert len(caught.value.problems) == 2
    CycleDetector(config, source_cluster_id="one", target_cluster_id="two").require_no_cycles(["a", "east.a"])


def test_a_topic_that_appears_later_gets_no_name_that_a_target_topic_may_not_have(tmp_path: Path) -> None:
    cycles = CycleDetector(_config(tmp_path, target_name="_{topic}"), source_cluster_id="one", target_cluster_id="two")
    assert cycles.target_topic_name("orders") == "_orders"
    with pytest.raises(ConfigError, match="would be written to __offsets: names that begin with __ are internal"):
        cycles.target_topic_name("_offsets")
    with pytest.raises(ConfigError, match="has 251 characters, brokers allow 249"):
        cycles.target_topic_name("x" * 250)


def test_a_topic_that_is_continued_came_from_the_target_and_is_no_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin(
        mirror="there", source_cluster_id="two", source_alias="east", target_name="{topic}", include=(".*",), exclude=()
    )
    monkeypatch.setattr(cycle_detection, "read_group_notes", lambda *_, **__: {"there-origin": [origin.build(10_000)]})
    config = _config(tmp_path, offsets={"orders": "continued", ".*": "preserved"})
    cycles = CycleDetector(config, source_cluster_id="one", target_cluster_id="two")
    cycles.read_registrations()
    cycles.require_no_cycles(["orders"])
    with pytest.raises(ConfigError, match="source topic bills is a copy of bills made by mirror there"):
        cycles.require_no_cycles(["orders", "bills"])


def test_a_new_topic_that_the_other_mirror_of_a_migration_would_copy_back_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Origin(
        mirror="there", source_cluster_id="two", source_alias="east", target_name="{topic}", include=(".*",), exclude=("c",)
    )
    monkeypatch.setattr(cycle_detection, "read_group_notes", lambda *_, **__: {"there-origin": [origin.build(10_000)]})
    config = _config(tmp_path)
    cycles = CycleDetector(config, source_cluster_id="one", target_cluster_id="two")
    assert cycles.leave_out_new(config, ["b.c"]) is config, "without a migration it is refused"
    cycles.exempt(frozenset({"a"}))
    assert cycles.leave_out_new(config, ["c"]) is config, "the other mirror does not copy it"
    left = cycles.leave_out_new(config, ["b.c", "c"])
    assert not left.topics.is_included("b.c")
    assert left.topics.is_included("bxc")
    assert dict(cycles.left_out) == {
        "b.c": "source topic b.c appeared after a migration and is not copied: mirror there would copy it back"
    }
    cycles.require_no_cycles(["a", "c"])
