"""Where the mirror begins with partitions at its first run, on real clusters; test_topics.py has those that appear while it runs."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import catch_up, config, create_topic, read_values

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(400)]

T0_MS = 1_700_000_000_000


def test_a_start_by_time_moves_down_to_the_batch_that_holds_it_and_says_so(
    two_clusters: Any, topic_name: str, tmp_path: Path, inline_streams: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source, target, topic = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
    create_topic(source, topic, partitions=2, settings={"retention.ms": "-1"})
    runs.write_stamped(source, topic, [("a", T0_MS)])
    runs.write_stamped(source, topic, [("b", T0_MS + 1_000), ("c", T0_MS + 2_000), ("d", T0_MS + 3_000)])
    runs.write_stamped(source, topic, [("old", T0_MS)], partition=1)
    cut = f"{topic}.cut"
    create_topic(source, cut, settings={"retention.ms": "-1"})
    runs.write_stamped(source, cut, [(value, T0_MS) for value in "wxyz"])
    runs.delete_records(source, cut, 1)
    start = {"start": {re.escape(cut): {0: 3}}}
    settings = config(tmp_path, source, target, [topic, cut], topics=start, read={"start": "2023-11-14T22:13:22Z"})
    with caplog.at_level(logging.INFO):
        catch_up(settings, inline_streams)
    assert read_values(target, topic) == ["b", "c", "d"]
    assert read_values(target, topic, 1) == []
    assert f"{topic}-0: start 2 lies inside a batch: moved down to 1" in caplog.text
    assert read_values(target, cut) == ["x", "y", "z"], "the log begins inside the batch that holds the start"
    assert f"{cut}-0: start 3 lies inside a batch: moved down to 1" in caplog.text
    assert runs.positions(settings) == {(topic, 0): 4, (topic, 1): 1, (cut, 0): 4}
