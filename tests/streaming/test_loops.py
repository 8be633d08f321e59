from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import mirror_runs as runs

from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.loops import refuse_loops, without_own_targets

BROKER = "127.0.0.1:1"


def _config(folder: Path, **topics: Any) -> Any:
    return runs.config(folder, BROKER, BROKER, [".*"], topics=topics)


def test_within_one_cluster_the_mirrors_own_targets_are_no_sources(tmp_path: Path) -> None:
    config = without_own_targets(_config(tmp_path, target_name="{source}.{topic}"), is_same_cluster=True)
    assert config.topics.is_included("orders")
    assert not config.topics.is_included("east.orders")


def test_between_two_clusters_nothing_is_left_out(tmp_path: Path) -> None:
    config = _config(tmp_path)
    assert without_own_targets(config, is_same_cluster=False) is config


def test_a_mirror_of_topics_onto_themselves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source east and target west are one cluster, and topics\.target_name"):
        without_own_targets(_config(tmp_path), is_same_cluster=True)


def test_topics_that_would_be_written_to_each_other_are_refused_together(tmp_path: Path) -> None:
    config = _config(tmp_path, target_name="{source}.{topic}")
    with pytest.raises(ConfigError) as caught:
        refuse_loops(config, ["a", "east.a", "b", "east.b"], is_same_cluster=True)
    assert len(caught.value.problems) == 2
    refuse_loops(config, ["a", "east.a"], is_same_cluster=False)
