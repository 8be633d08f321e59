"""What befalls a source under its mirror, on real clusters: noticed before anything wrong is copied, and told with offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.audit.log_files import LogFile, stopped
from tests.audit.mirror_main import catch_up, mirror
from tests.conftest import TwoClusters
from tests.mirror_runs import conf_file, create_topic, read_values, write

pytestmark = pytest.mark.brokers


def ended(conf: Path) -> str:
    """Why the mirror ended by itself."""
    with mirror(conf) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    return said


def test_a_log_that_was_cut_and_grew_beyond_the_position_is_refused_before_anything_is_copied(
    stoppable_clusters: TwoClusters, tmp_path: Path, topic_name: str
) -> None:
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap
    create_topic(source, topic_name)
    first = [f"first {n}" for n in range(10)]
    for value in first:
        write(source, topic_name, [value])
    conf = conf_file(tmp_path, source, target, [topic_name])
    catch_up(conf)
    with stopped(stoppable_clusters.source):
        log = LogFile(stoppable_clusters.source, topic_name)
        del log.batches[6:]
        log.write()
    write(source, topic_name, [f"second {n}" for n in range(20)])
    said = ended(conf)
    assert f"{topic_name}-0: expected offset 10: the log is not the one that was copied" in said
    assert "up to 10 records of leader epoch 0 were copied, and it holds others from offset 6 on" in said
    assert "topics.exclude" in said
    assert read_values(target, topic_name) == first
