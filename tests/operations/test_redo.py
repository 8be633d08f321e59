"""A range once more, on real clusters and without Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import read_partitions, read_values, write

from shallow_mirror import cli
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, DataLossError, OlderTablesError
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


def begun_and_killed(
    two_clusters: Any, topic: str, tmp_path: Path, point: str = "AwaitVisible"
) -> tuple[MirrorConfig, RedoRequest]:
    """Write 30 records in batches of three, and kill their copy at a point; by default its first transaction is committed."""
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    runs.create_topic(source, topic)
    for first in range(0, 30, 3):
        write(source, topic, [f"{number:03}" + "x" * 300 for number in range(first, first + 3)])
    settings = runs.config(tmp_path, source, target, [topic], write={"slot_bytes": 1024})
    request = RedoRequest(TopicPartition(topic, 0), 0, 30, f"{topic}-again")
    derived = redo_config(settings, request)
    with pytest.raises(runs.CrashError):
        redo(derived, request, observer=runs.CrashAt(point))
    return derived, request


def numbers_at(bootstrap: str, topic: str) -> list[int]:
    return [int(value[:3]) for value in read_values(bootstrap, topic, 0)]


def test_what_the_source_has_deleted_of_a_range_is_left_out_only_where_that_is_accepted(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    derived, request = begun_and_killed(two_clusters, topic_name, tmp_path)
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    copied = numbers_at(target, request.target_topic)
    assert copied == list(range(len(copied)))
    assert 0 < len(copied) < 20
    runs.delete_records(source, topic_name, 20)  # within a batch
    with pytest.raises(DataLossError, match="source log starts at 20"):
        redo(derived, request)
    result = redo(derived, request, leaves_out_gone=True)
    assert (result.gone, result.record_count) == ((OffsetRange(len(copied), 20),), len(copied) + 10)
    assert numbers_at(target, request.target_topic) == [*copied, *range(20, 30)]
    runs.delete_records(source, topic_name, 30)
    again = redo(derived, request, leaves_out_gone=True)
    assert (again.gone, again.was_done) == (result.gone, True)
    another = replace(request, start=1)
    assert redo(redo_config(derived, another), another, leaves_out_gone=True).gone == (OffsetRange(1, 30),)
    runs.delete_topic(source, topic_name)
    assert redo(derived, request, leaves_out_gone=True).gone == result.gone
    assert numbers_at(target, request.target_topic) == [*copied, *range(20, 30)]


def test_what_was_decided_of_a_range_that_is_gone_is_committed(two_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    derived, request = begun_and_killed(two_clusters, topic_name, tmp_path, "Decide")
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    assert numbers_at(target, request.target_topic) == []
    runs.delete_records(source, topic_name, 30)
    result = redo(derived, request, leaves_out_gone=True)
    copied = numbers_at(target, request.target_topic)
    assert copied
    assert (result.gone, copied) == ((OffsetRange(len(copied), 30),), list(range(len(copied))))


def test_a_range_is_not_copied_again_while_the_map_of_its_copy_is_missing_or_older(
    two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    derived, request = begun_and_killed(two_clusters, topic_name, tmp_path)
    tables, target = Path(derived.tables), two_clusters.target.bootstrap
    shutil.copytree(tables, tmp_path / "older")
    assert not redo(derived, request).was_done
    newest = tables.rename(tmp_path / "newest")
    group = rf"consumer group {derived.mirror}-0"
    with pytest.raises(OlderTablesError, match=rf"newest decision is none of this copy, but {group} on the target has a receipt"):
        redo(derived, request)
    assert not tables.exists()
    shutil.copytree(tmp_path / "older", tables)
    with pytest.raises(
        OlderTablesError, match=rf"Put the newest tables back .* with the {group} deleted on the target"
    ) as refused:
        redo(derived, request)
    assert "recover" not in str(refused.value)
    shutil.rmtree(tables)
    newest.rename(tables)
    assert redo(derived, request).was_done
    assert numbers_at(target, request.target_topic) == list(range(30))
