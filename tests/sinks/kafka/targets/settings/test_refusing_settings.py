"""What a target topic gets of its source topic's settings, and what has to wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.sinks.kafka.targets.settings.refusing_settings import following, is_passed, settings_before_compaction
from shallow_mirror.sinks.kafka.targets.target_topic_policy import configs_of_new
from shallow_mirror.types import SourcePartition

PLAIN = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1", "max.message.bytes": "1048588"}


def test_what_changed_at_the_source_is_followed_and_what_must_be_is_set_back() -> None:
    source = {**PLAIN, "retention.ms": "5", "delete.retention.ms": "7", "min.insync.replicas": "2"}
    settings = {**configs_of_new(PLAIN), "compression.type": "zstd", "segment.ms": "3"}
    config_changes = following(source, settings, is_passed=False)
    assert config_changes.changes == {"retention.ms": "5", "delete.retention.ms": "7", "compression.type": "producer"}
    assert following(PLAIN, configs_of_new(PLAIN), is_passed=False).changes == {}


@pytest.mark.parametrize(
    ("source", "target", "waits"), [("2000", "1000", False), ("1000", "2000", True), ("1000", "1000", False)]
)
def test_a_smaller_limit_of_batches_waits(source: str, target: str, waits: bool) -> None:
    of_source, made = {"max.message.bytes": source}, configs_of_new({"max.message.bytes": target})
    config_changes = following(of_source, made, is_passed=False)
    assert config_changes.waiting == (of_source if waits else {})
    assert config_changes.changes == (of_source if source > target else {})
    assert following(of_source, made, is_passed=True).changes == ({} if source == target else of_source)


@pytest.mark.parametrize(
    ("source", "target", "before"),
    [
        ("compact", "delete", {"retention.ms": "-1"}),
        ("compact,delete", "delete", {}),
        ("delete", "compact", {"cleanup.policy": "delete"}),
        ("delete,compact", "compact,delete", {"cleanup.policy": "delete,compact"}),
    ],
)
def test_compaction_waits_and_until_then_nothing_is_deleted_that_the_source_keeps(
    source: str, target: str, before: dict[str, str]
) -> None:
    of_source, made = {**PLAIN, "cleanup.policy": source}, configs_of_new({**PLAIN, "cleanup.policy": target})
    config_changes = following(of_source, made, is_passed=False)
    assert config_changes.changes == before
    waits = "compact" in source and "compact" not in target
    assert config_changes.waiting == ({"cleanup.policy": source} if waits else {})
    assert following(of_source, made | before, is_passed=True).changes.get("cleanup.policy", source) == source
    assert (following(of_source, made | before, is_passed=True).changes.get("retention.ms") == "604800000") is (
        "retention.ms" in before
    )


@pytest.mark.parametrize(
    ("policy", "names"),
    [("delete", []), ("compact", ["cleanup.policy", "retention.ms", "retention.bytes"]), ("compact,delete", ["cleanup.policy"])],
)
def test_a_copy_is_created_without_compaction(policy: str, names: list[str]) -> None:
    assert list(settings_before_compaction({"cleanup.policy": policy})) == names


def test_everything_below_the_ends_is_copied_where_the_map_has_passed_them() -> None:
    first, second = SourcePartition("orders", "id", 0), SourcePartition("orders", "id", 1)
    positions: Any = {first: SimpleNamespace(offset=10)}
    assert is_passed({first: 10, second: 0}, positions)
    assert not is_passed({first: 11}, positions)
    assert not is_passed({first: 10, second: 1}, positions)
    assert not is_passed({SourcePartition("orders", "another id", 0): 1}, positions)
