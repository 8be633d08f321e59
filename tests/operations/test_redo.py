"""A range once more, on real clusters and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import read_partitions, read_values, write

from shallow_mirror import cli
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.errors import ConfigError, DataLossError
from shallow_mirror.operations.redo import RedoRequest, redo, redo_config
from shallow_mirror.types import OffsetRange, TopicPartition

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300)]


def test_a_range_is_copied_once_more_and_only_once_whatever_is_killed(
    two_clusters: Any, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, topic = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
    runs.create_topic(source, topic, 2)
    for first in range(0, 60, 3):
        write(source, topic, [f"{number}" for number in range(first, first + 3)], 1)
    # The copies of the mirror itself keep their offsets; those of a range are written in transactions all the same.
    more = {"write": {"slot_bytes": 1024}, "topics": {"offsets": {".*": "preserved"}}}
    conf = runs.conf_file(tmp_path, source, target, [topic], **more)
    settings = runs.config(tmp_path, source, target, [topic], **more)
    copy = f"{topic}-again"
    request = RedoRequest(TopicPartition(topic, 1), 4, 50, copy)
    derived = redo_config(settings, request)
    for point in ("RunSlots", "Decide", "EndTxn", "AwaitVisible"):
        with pytest.raises(runs.CrashError):
            redo(derived, request, observer=runs.CrashAt(point))
    with pytest.raises(SystemExit) as ended:
        cli.main(["redo", str(conf), topic, "1", "4", "50", "--to", copy])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith(f"copied: offsets 3 to 50 of {topic}-1 (whole batches), 48 records, to {copy}-1; the offset map")
    assert read_values(target, copy, 1) == [f"{number}" for number in range(3, 51)]
    assert runs.topics_of(target)[copy] == 2
    offset_map = OffsetMap.open(derived.tables)
    copied = {record.value: record.offset for record in read_partitions(target, [(copy, 1)])[copy, 1]}
    assert {offset_map.translate(topic, 1, number).target_offset for number in range(3, 51)} == set(copied.values())
    assert offset_map.translate(topic, 1, 20).target_offset == copied[b"20"]
    assert not Path(settings.tables, "offset_map").exists()
    second_result = redo(derived, request)
    assert second_result.was_done
    assert second_result.sentence().startswith("was copied before: offsets 3 to 50")
    assert len(read_values(target, copy, 1)) == 48


def test_requests_that_cannot_be_meant_are_refused(two_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    source, target, topic = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
    runs.create_topic(source, topic)
    write(source, topic, ["a", "b"])
    runs.create_topic(source, f"{topic}.taken")
    settings = runs.config(tmp_path, source, target, [".*"])
    with pytest.raises(ConfigError) as caught:
        redo_config(settings, RedoRequest(TopicPartition(topic, 0), 2, 2, f"{topic}.taken"))
    assert caught.value.problems == (
        "offsets 2 to 2: FROM must be below TO (TO itself is not copied)",
        f"--to {topic}.taken: this mirror writes source topic {topic}.taken to it: give the name of another topic",
    )
    for topic_partition, reported in (
        (TopicPartition(topic, 0), f"offsets 1 to 3 of {topic}-0: the source has 0 to 2"),
        (TopicPartition(topic, 1), f"the source has no partition {topic}-1, or it has no leader"),
    ):
        request = RedoRequest(topic_partition, 1, 3, "again")  # `.*` includes this name, and the source has no such topic
        with pytest.raises(ConfigError, match=reported):
            redo(redo_config(settings, request), request)
    assert "again" not in runs.topics_of(target)


def test_what_expires_before_it_is_copied_is_left_out_where_that_is_wanted(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target, topic = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
    runs.create_topic(source, topic)
    for first in range(0, 30, 3):
        write(source, topic, [f"{number}" for number in range(first, first + 3)])
    request = RedoRequest(TopicPartition(topic, 0), 3, 27, f"{topic}-again")
    derived = redo_config(runs.config(tmp_path, source, target, [topic]), request)
    small = derived.model_copy(update={"write": derived.write.model_copy(update={"slot_bytes": 1})})
    with pytest.raises(runs.CrashError):
        redo(small, request, observer=runs.CrashAt("AwaitVisible"))
    runs.delete_records(source, topic, 15)
    with pytest.raises(DataLossError, match="source log starts at 15"):
        redo(small, request)
    assert redo(small, request, leaves_out_gone=True).gone == (OffsetRange(6, 15),)
    copied = [f"{number}" for number in (*range(3, 6), *range(15, 27))]
    assert read_values(target, f"{topic}-again") == copied
    runs.delete_topic(source, topic)
    assert redo(small, request, leaves_out_gone=True).gone == (OffsetRange(6, 15),)
    assert read_values(target, f"{topic}-again") == copied
