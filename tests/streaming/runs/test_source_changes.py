"""What befalls a source under its mirror, on real clusters: noticed before anything wrong is copied, and told with offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.conftest import TwoClusters
from tests.support.mirror_runs import conf_file, create_topic, delete_records, delete_topic, read_values, wait_for, write
from tests.verify.log_files import LogFile, stopped
from tests.verify.mirror_main import catch_up, mirror

from shallow_mirror import cli
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.runs import ProblemKind, read_problems
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP_TABLE, table_uri
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.operations.status import gather_status
from shallow_mirror.types import SegmentKind
from shallow_mirror.verify import Unchecked, verify_mirror

pytestmark = pytest.mark.brokers


@pytest.fixture
def mirrored(stoppable_clusters: TwoClusters, tmp_path: Path, topic_name: str) -> Path:
    """Return the file of a mirror that has caught up with a topic of two records."""
    create_topic(stoppable_clusters.source.bootstrap, topic_name)
    write(stoppable_clusters.source.bootstrap, topic_name, ["a", "b"])
    conf = conf_of(stoppable_clusters, tmp_path, topic_name)
    catch_up(conf)
    return conf


def conf_of(clusters: TwoClusters, folder: Path, topic: str, **read: str) -> Path:
    return conf_file(folder, clusters.source.bootstrap, clusters.target.bootstrap, [topic], read=read)


def kinds(conf: Path) -> list[tuple[int, int, str]]:
    rows = DeltaTable(table_uri(MirrorConfig.load(conf).tables, OFFSET_MAP_TABLE)).to_pyarrow_table().to_pylist()
    return sorted(
        (row["source_start"], row["source_end"], row["kind"]) for row in rows if row["source_end"] > row["source_start"]
    )


def ended(conf: Path) -> str:
    """Why the mirror ended by itself."""
    with mirror(conf) as process:
        _, output = process.communicate(timeout=60)
    assert process.returncode == 1, output
    return output


def test_a_log_that_was_cut_and_grew_beyond_the_position_stops_the_mirror_or_is_continued_at_the_position(
    stoppable_clusters: TwoClusters, tmp_path: Path, topic_name: str
) -> None:
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap
    create_topic(source, topic_name)
    first = [f"first {n}" for n in range(10)]
    for value in first:
        write(source, topic_name, [value])
    conf = conf_of(stoppable_clusters, tmp_path, topic_name)
    catch_up(conf)
    with stopped(stoppable_clusters.source):
        log = LogFile(stoppable_clusters.source, topic_name)
        del log.batches[6:]
        log.write()
    write(source, topic_name, [f"second {n}" for n in range(20)])
    output = ended(conf)
    assert f"{topic_name}-0: expected offset 10: the log is not the one that was copied" in output
    assert "up to 10 records of leader epoch 0 were copied, and it holds others from offset 6 on" in output
    assert "set read.on_data_loss: continue and start again" in output
    assert "topics.exclude" in output
    assert read_values(target, topic_name) == first
    conf = conf_of(stoppable_clusters, tmp_path, topic_name, on_data_loss="continue")
    catch_up(conf)
    assert read_values(target, topic_name) == [*first, *(f"second {n}" for n in range(4, 20))]
    assert kinds(conf)[-1] == (10, 26, "data")
    settings = MirrorConfig.load(conf)
    problems = [
        counted_problem.problem for counted_problem in read_problems(TableStorage(settings.tables).background_tables(), 10)
    ]
    (problem,) = [problem for problem in problems if problem.kind is ProblemKind.TRUNCATED]
    assert problem.text.startswith("the source holds other records at offsets 6 to 9 than were copied")
    differing = [
        range(difference.source_start or 0, difference.source_end or 0) for difference in verify_mirror(settings).differences
    ]
    assert {offset for offsets in differing for offset in offsets} == {6, 7, 8, 9}


def test_what_retention_deleted_stops_the_mirror_or_is_recorded_as_expired(
    stoppable_clusters: TwoClusters, mirrored: Path, tmp_path: Path, topic_name: str
) -> None:
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap
    for value in "cdefg":
        write(source, topic_name, [value])
    delete_records(source, topic_name, 5)
    output = ended(mirrored)
    assert f"{topic_name}-0: expected offset 2, source log starts at 5: retention or DeleteRecords removed it" in output
    assert "set read.on_data_loss: continue and start again" in output
    conf = conf_of(stoppable_clusters, tmp_path, topic_name, on_data_loss="continue")
    catch_up(conf)
    assert read_values(target, topic_name) == ["a", "b", "f", "g"]
    assert kinds(conf) == [(0, 2, "data"), (2, 5, "expired"), (5, 7, "data")]
    settings = MirrorConfig.load(conf)
    translated = OffsetMap.open(settings.tables).translate(topic_name, 0, 3)
    assert (translated.kind, translated.exact, translated.target_partition) == (SegmentKind.EXPIRED, False, 0)
    assert verify_mirror(settings).is_equal


def test_a_topic_that_was_created_again_stops_the_mirror_or_continues_behind_the_old_one(
    stoppable_clusters: TwoClusters, mirrored: Path, tmp_path: Path, topic_name: str
) -> None:
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap

    def create_again(*values: str) -> None:
        delete_topic(source, topic_name)
        create_topic(source, topic_name)
        write(source, topic_name, list(values))

    create_again("c", "d", "e")
    output = ended(mirrored)
    assert f"{topic_name}-0: expected offset 2: the topic was deleted and created again" in output
    assert "set read.on_data_loss: continue and start again" in output
    conf = conf_of(stoppable_clusters, tmp_path, topic_name, on_data_loss="continue")
    with mirror(conf):
        wait_for("the second topic", lambda: read_values(target, topic_name) == ["a", "b", "c", "d", "e"])
        create_again("f")
        wait_for("the third topic", lambda: read_values(target, topic_name) == ["a", "b", "c", "d", "e", "f"])
    assert kinds(conf) == [(0, 1, "data"), (0, 2, "data"), (0, 3, "data")]
    report = verify_mirror(MirrorConfig.load(conf))
    assert (report.is_equal, report.record_count, report.unchecked) == (True, 1, {Unchecked.SOURCE_TOPIC_GONE: 5})


@pytest.mark.long
def test_topics_that_go_away_on_either_side_are_left_out_and_the_others_are_copied(
    stoppable_clusters: TwoClusters, tmp_path: Path, topic_name: str
) -> None:
    source, target = stoppable_clusters.source.bootstrap, stoppable_clusters.target.bootstrap
    whole, of_target, of_source, preserved = (f"{topic_name}.{name}" for name in ("whole", "target", "source", "preserved"))
    topics = {"offsets": {preserved: "preserved"}}
    for name in (whole, of_target, of_source, preserved):
        create_topic(source, name)
        write(source, name, ["a"])
    conf = conf_file(tmp_path, source, target, [f"{topic_name}.*"], topics=topics, on_error="isolate")
    settings = MirrorConfig.load(conf)

    def left_out() -> set[str]:
        return {left.source.topic for left in gather_status(settings).left_out}

    def write_all(value: str, *names: str) -> None:
        for name in names:
            write(source, name, [value])

    with mirror(conf) as process:
        wait_for("all topics", lambda: [read_values(target, name) for name in (whole, of_source, preserved)] == [["a"]] * 3)
        for name in (of_target, preserved):
            delete_topic(target, name)
        write_all("b", whole, of_target, of_source, preserved)
        wait_for("what is left out", lambda: {of_target, preserved} <= left_out())
        wait_for("the others", lambda: [read_values(target, name) for name in (whole, of_source)] == [["a", "b"]] * 2)
        create_topic(target, of_target)
        delete_topic(source, of_source)
        create_topic(source, of_source)
        write_all("c", whole, of_target, of_source)
        wait_for("all three", lambda: {of_target, of_source, preserved} <= left_out())
        wait_for("the rest", lambda: read_values(target, whole) == ["a", "b", "c"])
        assert process.poll() is None
    assert read_values(target, of_target) == []
    assert read_values(target, of_source) == ["a", "b"]
    write_all("d", whole)
    with mirror(conf):
        wait_for("what is written after a start", lambda: read_values(target, whole) == ["a", "b", "c", "d"])
        wait_for("what it leaves out", lambda: {of_target, of_source, preserved} <= left_out())
    assert read_values(target, of_target) == []
    assert read_values(target, of_source) == ["a", "b"]
    stopping = conf_file(tmp_path, source, target, [f"{topic_name}.*"], topics={**topics, "exclude": [of_source]})
    with mirror(stopping) as process:
        _, output = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert f"target topic {of_target} (for {of_target}) was deleted and created again" in output
    assert f"target topic {preserved} (for {preserved}) was deleted, with what was copied to it" in output

    conf = conf_file(tmp_path, source, target, [f"{topic_name}.*"], topics=topics)
    with pytest.raises(SystemExit) as forgotten:
        cli.main(("forget", str(conf), of_target, of_source, preserved, "--apply"))
    assert not forgotten.value.code
    with mirror(conf) as process:
        wait_for("what has the name now", lambda: read_values(target, of_source) == ["a", "b", "c"])
        process.terminate()
        _, output = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert read_values(target, of_target) == []
    verified = verify_mirror(settings)
    assert (verified.is_equal, len(verified.closed)) == (True, 3)
    assert {entry.source.topic for entry in gather_status(settings).partitions} == {whole, of_source}
